"""The settings of islands that are planned, compared with all of them, enumerated and priced apart from the planner."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf, log
from typing import Any

import numpy as np
import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import IslandsPlan, Plan
from holmes_runtime.config.model_shape import stage_parameters
from holmes_runtime.config.run_settings import ChosenIslands, IslandsSettings, OuterCodec
from launcher.islands.island_part import outer_sync_of
from launcher.prepare.engine_arguments import command_of
from planner.cluster_subset import only_clusters
from planner.cost.counts import outer_bytes
from planner.cost.islands_loss import BY_CODEC, BY_DELAY, BY_INNER_STEPS, loss_penalty
from planner.islands.setting_choice import open_settings
from planner.islands.uniform_links import with_uniform_links
from planner.layout.verify import verify
from planner.problem.memory_room import USABLE_SHARE
from tests.planner.fleets import bed_job, cpu_inventory
from tests.planner.islands_jobs import planned_mode
from tests.planner.test_island_choice import Found, Wires, best_islands_per_s, best_of_each_mode, draw_fleet

MAX_STEPS = 40  # inner steps: half of the job's
BOUNDS = (None, None, "0.5%", "2%")
SLOW = with_uniform_links(cpu_inventory([1, 1]), 2.5e5, 0.02)  # 2 Mbit/s


def draw_open(seed: int) -> tuple[Inventory, Job, Wires]:
    """A fleet, and a job that leaves some settings of islands open."""
    inventory, job, wires = draw_fleet(seed)
    draw = random.Random(f"open {seed}")
    inner_steps = draw.choice((None, 4, 10))
    section = IslandsSettings(
        inner_steps=inner_steps,
        codec=draw.choice((None, None, "none", "int8", "int4")),
        fragments=draw.choice((None, 1, 4)),
        delay_steps=draw.choice((None, 0)) if inner_steps else draw.choice((None, 0, 2)),
        max_loss_penalty=draw.choice(BOUNDS),
    )
    return inventory, job.model_copy(update={"islands": section, "steps": 2 * MAX_STEPS}), wires


def expected_loss(islands: ChosenIslands) -> float:
    """The sum of the measured parts, in percent; longer rounds are never taken for better than shorter ones."""
    steps, late = sorted(BY_INNER_STEPS), sorted(BY_DELAY)
    rising = np.maximum.accumulate([max(0.0, BY_INNER_STEPS[each].percent) for each in steps])
    loss = np.interp(log(islands.inner_steps), np.log(steps), rising)
    if islands.fragments > 1 or islands.delay_steps > 0:
        loss += np.interp(islands.delay_steps, late, [BY_DELAY[each].percent for each in late])
    return float(loss) + BY_CODEC[islands.codec].percent


def all_settings(section: IslandsSettings) -> Iterator[ChosenIslands]:
    """Every setting within what the section fixes, and within its bound."""
    bound = float(section.max_loss_penalty.strip("%")) if section.max_loss_penalty else inf
    fixed = section.inner_steps
    steps = [fixed] if isinstance(fixed, int) else range(1, MAX_STEPS + 1)
    codecs: tuple[OuterCodec, ...] = (section.codec,) if section.codec else ("none", "int8", "int4")
    fragments = [section.fragments] if section.fragments else [1, 4]
    delays = [0, 2, 6, 12] if section.delay_steps is None else [section.delay_steps]
    for number, codec, parts, late in product(steps, codecs, fragments, delays):
        if number >= parts and number // parts >= late:
            one = replace(section, inner_steps=number, codec=codec, fragments=parts, delay_steps=late).chosen()
            if expected_loss(one) <= bound + 1e-3:
                yield one


def best_per_s(inventory: Inventory, job: Job, wires: Wires, cache: dict[object, Found], least: int = 0) -> float:
    """Tokens/s of the best setting, of more than `least` inner steps; 0 where there is none."""
    assert job.islands is not None
    return max(
        (
            best_islands_per_s(inventory, job.model_copy(update={"islands": each.as_settings()}), wires, cache)
            for each in all_settings(job.islands)
            if each.inner_steps > least
        ),
        default=0.0,
    )


def check_fleet(seed: int) -> None:
    """Compare the plan and its notice with the enumeration."""
    inventory, job, wires = draw_open(seed)
    cache, section = dict[object, Found](), job.islands
    assert section is not None
    tokens = job.global_batch_size * job.model.seq_length
    together = best_of_each_mode(inventory, job.model_copy(update={"islands": None}))
    as_one = tokens / min(step_s for step_s, *_ in together.values())
    best = max(as_one, best_per_s(inventory, job, wires, cache))
    plan = planned_mode(inventory, job)
    now = plan.prediction.tokens_per_s
    assert best / 1.02 <= now <= best * 1.001, (section, plan.modes)
    if isinstance(plan, IslandsPlan):
        assert plan.job.islands is not None
        fixed = {key: value for key, value in vars(section).items() if value is not None}
        assert vars(plan.job.islands).items() >= fixed.items()
    assert plan.modes is not None
    said, longer = plan.modes.longer_round, 0.0
    if isinstance(section.inner_steps, int):
        freed = job.model_copy(update={"islands": replace(section, inner_steps=None)})
        longer = best_per_s(inventory, freed, wires, cache, section.inner_steps)
    if abs(longer / now / 1.05 - 1) > 3e-4:  # what is on the threshold may be said or not: codecs fill up blocks
        assert (said is not None) == (longer > now * 1.05), (said, longer, now)
    if said is not None:
        assert longer / 1.02 <= said.tokens_per_s <= longer * 1.001


@pytest.mark.parametrize("seed", range(2))
def test_settings_of_a_fleet_are_those_of_an_enumeration(seed: int) -> None:
    check_fleet(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 60))
def test_settings_are_those_of_an_enumeration(seed: int) -> None:
    check_fleet(seed)


def slow_job(**section: object) -> Job:
    return bed_job(parallel={}, steps=200, islands=section)


@pytest.mark.parametrize("engine", ["torch", "accelerate", "torchtitan"])
def test_a_command_of_another_trainer_is_planned_as_islands_where_the_wire_is_slow(engine: str) -> None:
    given = bed_job(steps=64, parallel={"dp": 2, "pp": 1}).model_dump(
        include={"model", "steps", "global_batch_size", "device", "compute", "parallel"}
    )
    trainer = {"engine": engine, "command": ["python", "train.py", "{steps}"]}
    job = Job.model_validate({**given, "trainer": trainer, "islands": {"inner_steps": 8}})
    plan = planned_mode(with_uniform_links(cpu_inventory([2, 2]), 2.5e5, 0.02), job)
    assert isinstance(plan, IslandsPlan)
    assert [each.job.engine for each in plan.islands] == [engine] * 2
    assert IslandsPlan.model_validate(plan.model_dump(mode="json")).islands == plan.islands
    commands = [command_of(each) for each in plan.islands]
    assert all(str(each.job.steps) in command for each, command in zip(plan.islands, commands, strict=True))


def test_open_section_gives_every_island_concrete_settings_and_keeps_what_is_fixed() -> None:
    plan = planned_mode(SLOW, slow_job(codec="int8", max_loss_penalty="2%"))
    assert isinstance(plan, IslandsPlan)
    assert plan.job.islands is not None
    chosen = plan.job.islands.chosen()
    assert chosen.codec == "int8"
    for number, island in enumerate(plan.islands):
        assert island.job.islands is not None
        assert replace(island.job.islands.chosen(), inner_steps=chosen.inner_steps) == chosen
        assert verify(island, only_clusters(SLOW, ["ab"[number]])) == []
        sent = outer_sync_of(plan, number)
        assert (sent.inner_steps, sent.codec) == (plan.inner_steps[number], "int8")
        assert (sent.fragments, sent.delay_steps) == (chosen.fragments, chosen.delay_steps)


def test_islands_that_take_all_steps_meet_once_after_as_many_samples_and_their_loss_is_not_known() -> None:
    plan = planned_mode(SLOW, slow_job(inner_steps="all", codec="int8"))
    assert isinstance(plan, IslandsPlan)
    assert (plan.rounds, plan.num_exchanges) == (1, 1)
    assert plan.inner_steps == (200, 200)
    assert [island.job.steps for island in plan.islands] == [200, 200]
    once, often = (
        planned_mode(SLOW, slow_job(inner_steps=each, codec="int8", fragments=1, delay_steps=0)) for each in ("all", 50)
    )
    assert isinstance(once, IslandsPlan)
    assert isinstance(often, IslandsPlan)
    assert once.prediction.exposed_s == pytest.approx(often.prediction.exposed_s)  # one of four exchanges
    assert all(each.loss is None for each in plan.modes.settings)
    free = planned_mode(SLOW, slow_job(inner_steps="all"))
    assert isinstance(free, IslandsPlan)
    assert free.job.islands is not None
    assert free.job.islands.codec == "int8"
    bounded = planned_mode(SLOW, slow_job(inner_steps="all", max_loss_penalty="9%"))
    assert bounded.modes is not None
    assert "no setting is known to cost max_loss_penalty 9% or less" in [each.why for each in bounded.modes.prices]


def test_another_word_than_all_is_no_number_of_steps() -> None:
    with pytest.raises(ValueError, match=r"islands\.inner_steps\n +Input should be a valid integer"):
        slow_job(inner_steps="al")


@pytest.mark.parametrize(("key", "value"), [("fragments", 2), ("delay_steps", 1)])
def test_nothing_follows_the_only_exchange_of_islands_that_take_all_steps(key: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{key}.* must be . where inner_steps is all"):
        slow_job(**{"inner_steps": "all", key: value})


def test_table_has_the_choice_and_what_differs_from_it_in_one_respect() -> None:
    plan = planned_mode(SLOW, slow_job())
    assert plan.modes is not None
    (chosen,) = [each for each in plan.modes.settings if each.is_chosen]
    ours = (chosen.inner_steps, chosen.codec, (chosen.fragments, chosen.delay_steps))
    for each in plan.modes.settings:
        theirs = (each.inner_steps, each.codec, (each.fragments, each.delay_steps))
        assert sum(a != b for a, b in zip(ours, theirs, strict=True)) == (not each.is_chosen)
        assert each.loss is not None
        assert each.loss.low <= each.loss.expected <= each.loss.high
        assert each.step_s * each.tokens_per_s == pytest.approx(chosen.step_s * chosen.tokens_per_s, rel=0.1)
    assert {each.codec for each in plan.modes.settings} == {"none", "int8", "int4"}
    assert len({each.inner_steps for each in plan.modes.settings}) > 3


def test_loss_is_not_known_beyond_what_was_measured() -> None:
    section = IslandsSettings(inner_steps=500, codec="none", fragments=1, delay_steps=0).chosen()
    assert loss_penalty(section) is not None
    assert loss_penalty(replace(section, inner_steps=501)) is None
    assert loss_penalty(replace(section, delay_steps=13)) is None
    assert loss_penalty(replace(section, inner_steps=3)) == loss_penalty(replace(section, inner_steps=10))
    rising = [found.expected for steps in range(1, 501) if (found := loss_penalty(replace(section, inner_steps=steps)))]
    assert len(rising) == 500
    assert rising == sorted(rising)


@pytest.mark.parametrize(
    ("section", "steps", "setting", "why"),
    [
        ({"fragments": 8}, 10, "islands.fragments: 8", "half of the job's 10 steps"),
        ({"fragments": 32, "delay_steps": 6}, 60, "islands.fragments: 32", "half of the job's 60 steps"),
        ({"fragments": 8, "delay_steps": 6}, 10, "islands.fragments: 8 and islands.delay_steps: 6", "10 steps"),
        ({"inner_steps": 2, "delay_steps": 2}, 200, "islands.inner_steps: 2", "cluster b is too slow"),
    ],
)
def test_settings_that_fit_no_round_are_named_with_the_speed_of_islands_without_them(
    section: dict[str, Any], steps: int, setting: str, why: str
) -> None:
    slowdown = {"b": 1.5 if "slow" in why else 1.0}
    emulate = {"forward_s_per_layer": 0.02, "backward_s_per_layer": 0.04, "slowdown": slowdown}
    job = bed_job(parallel={}, steps=steps, islands=section, compute={"emulate": emulate})
    assert (open_settings(job) == ()) == ("steps" in why)
    plan = planned_mode(SLOW, job)
    assert isinstance(plan, Plan)
    assert plan.modes is not None
    assert why in next(price.why for price in plan.modes.prices if price.mode == "islands")
    slower_by = plan.modes.slower_by
    assert slower_by is not None
    assert slower_by.setting == setting
    assert why in slower_by.why
    assert slower_by.tokens_per_s > 1.05 * plan.prediction.tokens_per_s


@pytest.mark.parametrize(
    ("section", "setting"),
    [
        ({"quorum": 3}, "islands.quorum: 3"),
        ({"codec": "none", "max_loss_penalty": "1%"}, "islands.max_loss_penalty: 1%"),
        ({}, None),
    ],
)
def test_setting_that_rules_out_faster_islands_is_named_with_their_speed(
    section: dict[str, object], setting: str | None
) -> None:
    plan = planned_mode(SLOW, slow_job(**section))
    assert plan.modes is not None
    slower_by = plan.modes.slower_by
    assert (slower_by and slower_by.setting) == setting
    if slower_by is not None:
        free = planned_mode(SLOW, slow_job(**{key: section[key] for key in section if key == "codec"}))
        assert slower_by.tokens_per_s == pytest.approx(free.prediction.tokens_per_s, rel=1e-6)
        assert slower_by.tokens_per_s > 1.05 * plan.prediction.tokens_per_s
    assert isinstance(plan, Plan) == (setting is not None and "max" not in setting)


def test_settings_that_take_too_much_host_memory_are_dropped_and_the_table_says_so() -> None:
    # Anchor, momentum, error, change, and change and mean of a fragment: 24 bytes at most, 10 at least.
    def planned(bytes_each: float) -> Plan | IslandsPlan:
        parameters = stage_parameters(slow_job().model, 10, True, True, 1)
        room = {"memory_bytes": int(bytes_each * parameters / USABLE_SHARE)}
        hosts = tuple(host.model_copy(update=room if host.name == "b1" else {}) for host in SLOW.hosts)
        return planned_mode(SLOW.model_copy(update={"hosts": hosts}), slow_job())

    plan = planned(15.0)
    assert isinstance(plan, IslandsPlan)
    assert plan.job.islands is not None
    assert outer_bytes(plan.job.islands) <= 15
    dropped = [each for each in plan.modes.settings if "of host memory, too much for b" in each.why]
    assert dropped
    for each in plan.modes.settings:
        kept = 2 + (each.codec != "none") + (each.delay_steps != 0)
        assert (each in dropped) == (4 * kept + 8 / each.fragments > 15), each
    for number, island in enumerate(plan.islands):
        assert verify(island, only_clusters(SLOW, ["ab"[number]])) == []

    none = planned(9.0)
    assert isinstance(none, Plan)
    assert none.modes is not None
    assert "anchor and momentum take" in next(price.why for price in none.modes.prices if price.mode == "islands")
