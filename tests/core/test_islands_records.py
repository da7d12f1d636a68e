"""job.yaml's `islands`, and plan.json of islands: what is refused, and what is read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.islands import Modes, Round
from holmes_core.records.job import Job
from holmes_core.records.parse_record import parse
from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.records.record_file import read_any, read_file, write_signed
from tests.planner.fleets import bed_job, cpu_inventory, plan_for

ROUND = Round(round_s=9.0, exposed_s=1.0, exchange_s=2.0, sent_bytes=(5, 5), tokens_per_s=3.0)

CHOSEN = {"inner_steps": 50, "codec": "int4", "fragments": 4, "delay_steps": 2}


def job_with(islands: dict[str, Any], steps: int = 100) -> Job:
    plain = bed_job(parallel={}, steps=steps).model_dump(mode="json", exclude_defaults=True)
    return parse(Job, plain | {"islands": islands}, "job.yaml")


def islands_plan(hosts: tuple[str, str] = ("a", "b"), section: dict[str, Any] = CHOSEN) -> IslandsPlan:
    job, inventory = job_with(section), cpu_inventory([1, 1])
    sizes = [cpu_inventory([1]), cpu_inventory([1]) if hosts[0] == hosts[1] else cpu_inventory([2])]
    plans = [plan_for(each, job.model_copy(update={"global_batch_size": 16})) for each in sizes]
    if hosts[0] != hosts[1]:
        renamed = tuple(node.model_copy(update={"host": f"b{node.node_rank}"}) for node in plans[1].nodes)
        plans[1] = plans[1].model_copy(update={"nodes": renamed})
    sources = plan_for(inventory, job)
    return IslandsPlan(
        inventory=sources.inventory,
        job_source=sources.job_source,
        job=job,
        rounds=2,
        islands=tuple(plans),
        prediction=ROUND,
        modes=Modes(prices=()),
    )


@pytest.mark.parametrize(
    ("islands", "said"),
    [
        ({"inner_steps": 50, "fragments": 60}, "islands.fragments: must be at most inner_steps 50 (value 60)"),
        (
            {"inner_steps": 50, "fragments": 4, "delay_steps": 50},
            "islands.delay_steps: must be at most 12, the steps between two fragments (value 50)",
        ),
        ({"inner_steps": 200}, "islands.inner_steps is 200, the job has only 100 steps"),
        ({"inner_steps": "many"}, "islands.inner_steps"),
        ({"inner_steps": 0}, "islands.inner_steps"),
        ({"codec": "bf16"}, "islands.codec"),
        ({"momentum": 1.0}, "islands.momentum"),
        ({"outer_rate": 0}, "islands.outer_rate"),
        ({"quorum": 0}, "islands.quorum"),
        ({"grace_s": 0}, "islands.grace_s"),
        ({"max_loss_penalty": 0.5}, "islands.max_loss_penalty"),
        ({"max_loss_penalty": "100%"}, "islands.max_loss_penalty"),
        ({"max_loss_penalty": "-1%"}, "islands.max_loss_penalty"),
        ({"outer_lr": 0.7}, "outer_lr"),
    ],
)
def test_wrong_section_is_refused_by_its_key(islands: dict[str, Any], said: str) -> None:
    with pytest.raises(HolmesError) as refused:
        job_with(islands)
    assert said in str(refused.value)


def test_section_may_be_empty_and_then_nothing_is_chosen() -> None:
    islands = job_with({}).islands
    assert islands is not None
    with pytest.raises(ValueError, match="inner_steps: must be set"):
        islands.chosen()


def test_plan_of_islands_without_all_settings_is_refused() -> None:
    with pytest.raises(ValueError, match="codec: must be set"):
        islands_plan(section={key: value for key, value in CHOSEN.items() if key != "codec"})


def test_files_without_the_section_do_not_name_it() -> None:
    text = plan_for(cpu_inventory([1, 1]), bed_job(parallel={})).to_json()
    assert '"islands"' not in text
    assert '"modes"' not in text


def test_plan_of_islands_is_read_back_and_told_from_an_ordinary_one(tmp_path: Path) -> None:
    path, plan = tmp_path / "plan.json", islands_plan()
    write_signed(path, plan)
    assert read_any((Plan, IslandsPlan), path).record == plan
    with pytest.raises(HolmesError, match="not of kind plan: its kind is islands_plan"):
        read_file(Plan, path)
    path.write_text(path.read_text().replace('"rounds": 2', '"rounds": 3'))
    with pytest.raises(HolmesError, match="changed since it was written"):
        read_any((Plan, IslandsPlan), path)


def test_ordinary_plan_is_read_as_one_of_either_kind(tmp_path: Path) -> None:
    path, plan = tmp_path / "plan.json", plan_for(cpu_inventory([1, 1]), bed_job(parallel={}))
    write_signed(path, plan)
    assert read_any((Plan, IslandsPlan), path).record == plan


def test_samples_of_a_round_are_steps_times_batch() -> None:
    plan = islands_plan()
    assert plan.inner_steps == (50, 50)
    assert plan.round_samples == (800, 800)


def test_host_in_two_islands_is_refused() -> None:
    with pytest.raises(ValueError, match="a host is in two islands"):
        islands_plan(("a", "a"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"address": "evil.example"}, "tunnel_hub.address"),
        ({"relayed": [["a", "x"]]}, "relays for \\['x'\\], which are on no island"),
        ({"num_ranks": 4}, "is not that of its island, or has ranks"),
        ({"host": "c1", "tunnel_endpoint": None}, "is not that of its island, or has ranks"),
    ],
)
def test_a_hub_that_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    plan = islands_plan()
    node = plan.islands[0].nodes[0].model_copy(update={"host": "c1", "num_ranks": 0, "tunnel_endpoint": "10.0.9.1"})
    hub: dict[str, Any] = {"node": node.model_dump(mode="json"), "address": "203.0.113.7", "relayed": [["a", "a"]]}
    whole = plan.model_dump(mode="json") | {"tunnel_hub": hub}
    of_node = {name: value for name, value in changes.items() if name not in hub}
    hub |= {name: value for name, value in changes.items() if name in hub} | {"node": hub["node"] | of_node}
    with pytest.raises(ValueError, match=said):
        IslandsPlan.model_validate(whole)
