"""Where no rail reaches another, ranks that talk over the NICs are on one rail, and nothing else changes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from planner.advice.across_rails import groups_across_rails, rails_sentence
from planner.cost.collectives import Path
from planner.cost.gpu_speeds import constant_speed
from planner.cost.slot import Slot
from planner.layout.rail_matching import match_rails
from planner.problem.fleet import Fleet, FleetHost, Hardware, HostClass
from planner.problem.problem import read_problem
from planner.problem.rails import Rails, read_rails
from planner.schedule.assign_hosts import GroupSlots, assign_hosts, group_slots_of
from tests.planner.fleets import gpt_7b, plan_for
from tests.planner.railed_fleets import railed_inventory, with_host, without_rail
from tests.planner.test_assign_hosts import placement
from tests.seeds import seeds


def railed_plan(inventory: Inventory, **parallel: Any) -> Plan:
    return plan_for(inventory, gpt_7b(parallel={"schedule": "1f1b", "micro_batch_size": 1, **parallel}))


def names_across(inventory: Inventory, **parallel: Any) -> list[str]:
    return [group.name for group in groups_across_rails(railed_plan(inventory, **parallel), inventory)]


def test_edges_between_hosts_that_hold_two_stages_each_stay_on_their_rails() -> None:
    inventory = railed_inventory([2])
    plan = railed_plan(inventory, pp=4, dp=4)
    assert len(plan.nodes) == 2
    assert groups_across_rails(plan, inventory) == ()
    together = railed_inventory([2], apart=False)
    blind = railed_plan(together, pp=4, dp=4)
    assert len(groups_across_rails(blind, inventory)) == 8  # without the rails in mind, each of four edges both ways


def test_plans_say_the_same_where_rails_reach_one_another() -> None:
    unknown, together = (railed_plan(railed_inventory([2], apart=apart), pp=4, dp=4) for apart in (None, False))
    assert unknown.ranks == together.ranks
    assert unknown.nodes == together.nodes


@pytest.mark.slow
def test_rails_change_no_second_of_the_prediction() -> None:
    apart, together = (railed_plan(railed_inventory([3], apart=apart), pp=6, dp=4) for apart in (True, False))
    assert apart.prediction == together.prediction
    assert apart.solve.placement_s == together.solve.placement_s
    assert apart.ranks != together.ranks


def test_ranks_may_leave_a_gpu_between_them_free_to_meet() -> None:
    inventory = railed_inventory([2])
    inventory = with_host(inventory, "a1", **without_rail(inventory.host("a1"), 1))
    plan = plan_for(inventory, gpt_7b(parallel={"pp": 4, "dp": 3, "micro_batch_size": 1}, global_batch_size=480))
    used = {host: [rank.gpu for rank in plan.ranks if rank.host == host] for host in ("a1", "a2")}
    assert 1 not in used["a1"]
    for node in plan.nodes:
        visible = {variable.name: variable.value for variable in node.environment}["CUDA_VISIBLE_DEVICES"]
        assert visible == ",".join(map(str, used[node.host]))
    assert groups_across_rails(plan, inventory) == ()


def test_tensor_groups_meet_by_position() -> None:
    inventory = railed_inventory([2])
    plan = railed_plan(inventory, tp=2, pp=4, dp=2)
    assert groups_across_rails(plan, inventory) == ()


def test_replicas_of_unequal_hosts_are_said_to_be_across() -> None:
    inventory = railed_inventory([2])
    inventory = with_host(inventory, "a2", gpus=inventory.host("a2").gpus[:4])
    job = gpt_7b(parallel={"pp": 1, "dp": 12, "micro_batch_size": 1}, global_batch_size=480)
    plan = plan_for(inventory, job)
    assert [group.name for group in groups_across_rails(plan, inventory)] == ["dp/stage0"]


def test_a_host_that_lost_a_rail_is_still_met_by_network() -> None:
    inventory = railed_inventory([2])
    inventory = with_host(inventory, "a2", **without_rail(inventory.host("a2"), 3))
    rails = read_rails(inventory, gpt_7b()).of_hosts
    assert [gpu for gpu in range(8) if rails["a1"][gpu] == rails["a2"][gpu]] == [0, 1, 2, 4, 5, 6, 7]


def test_gpus_whose_rails_nobody_knows_meet_by_position() -> None:
    inventory = railed_inventory([2])
    gpus = tuple(gpu.model_copy(update={"rail": None}) for gpu in inventory.host("a2").gpus)
    inventory = with_host(inventory, "a2", gpus=gpus)
    rails = read_rails(inventory, gpt_7b()).of_hosts
    assert rails["a1"] == rails["a2"]
    assert names_across(inventory, pp=4, dp=4) == []


def test_jobs_on_cpus_have_no_rails() -> None:
    job = gpt_7b().model_copy(update={"device": "cpu"})
    assert read_rails(railed_inventory([2]), job).of_hosts == {}


def test_the_sentence_names_the_groups_that_cannot_meet() -> None:
    together = railed_inventory([2], apart=False)
    blind, inventory = railed_plan(together, pp=4, dp=4), railed_inventory([2])
    assert rails_sentence(blind, together) == ()
    (sentence,) = rails_sentence(blind, inventory)
    assert "8 of" in sentence
    assert "edge/replica0/1-2/forward" in sentence


# ---- generated fleets

Drawn = tuple[Fleet, Rails, GroupSlots, int]


def drawn(seed: int, most_hosts: int = 5, most_slots: int = 8) -> Drawn:
    """Hosts of unequal numbers of GPUs, some on shared rails, some without one, filled by random tasklets."""
    draw = random.Random(seed)
    tp = draw.choice((1, 1, 2))
    hosts, of_hosts = [], {}
    for number in range(draw.randint(2, most_hosts)):
        slots = draw.randint(tp, most_slots)
        hardware = Hardware("a", slots, None, Slot(constant_speed(1.0), Path(1.0)))
        hosts.append(FleetHost(f"a{number}", tuple(range(slots)), hardware))
        lost, step = draw.choice((None, None, draw.randrange(slots))), draw.choice((1, 1, 2))
        of_hosts[f"a{number}"] = {i: str((i - (i == lost and i > 0)) // step) for i in range(slots)}
    fleet = Fleet(tuple(HostClass(host.hardware, (host,)) for host in hosts))
    free = [slot for host in hosts for slot in group_slots_of(host, tp)]
    pp = draw.randint(1, min(4, len(free)))
    dp = len(free) // pp
    keys = [(stage, replica) for stage in range(pp) for replica in range(dp)]
    if draw.random() < 0.5:
        draw.shuffle(keys)
    return fleet, Rails(of_hosts), dict(zip(keys, free, strict=False)), tp


def apart(rails: Rails, slots: GroupSlots, wraps: bool = False) -> tuple[int, int]:
    """Stages whose hosts have not the same rails, and edges between hosts whose ends have not: counted anew."""
    stages: dict[int, dict[str, set[tuple[str, ...]]]] = {}
    on = {key: rails.of_slots(where.host, where.gpus) for key, where in slots.items()}
    for (stage, replica), where in slots.items():
        stages.setdefault(stage, {}).setdefault(where.host, set()).add(on[stage, replica])
    last = max(stages)
    pairs = {((s, r), (s + 1, r)) for s, r in slots} | ({((last, r), (0, r)) for _, r in slots} if wraps else set())
    edges = [(a, b) for a, b in pairs if a in slots and b in slots and a != b and slots[a].host != slots[b].host]
    unmet = sum(len({frozenset(each) for each in of.values()}) > 1 for of in stages.values())
    return unmet, sum(on[a] != on[b] for a, b in edges)


@pytest.mark.parametrize("seed", seeds(300, few=20))
def test_tasklets_keep_their_hosts_and_no_more_are_apart(seed: int) -> None:
    fleet, rails, slots, tp = drawn(seed)
    wraps = seed % 3 == 0 and max(stage for stage, _ in slots) > 1
    met = match_rails(slots, fleet, rails, tp, wraps)
    assert {key: where.host for key, where in met.items()} == {key: where.host for key, where in slots.items()}
    assert len({(where.host, where.first_slot) for where in met.values()}) == len(slots)
    assert apart(rails, met, wraps) <= apart(rails, slots, wraps)


def exhaustive(fleet: Fleet, slots: GroupSlots, tp: int) -> Iterator[GroupSlots]:
    """Every way to give each host's group slots to its tasklets."""
    of_host: dict[str, list[tuple[int, int]]] = {}
    for key, where in slots.items():
        of_host.setdefault(where.host, []).append(key)
    ways = [
        [
            dict(zip(keys, chosen, strict=True))
            for chosen in permutations(group_slots_of(fleet.hosts[host], tp), len(keys))
        ]
        for host, keys in of_host.items()
    ]
    for parts in product(*ways):
        yield {key: where for part in parts for key, where in part.items()}


@pytest.mark.slow
def test_in_small_uneven_fleets_nine_in_ten_have_as_few_stages_apart_as_any_exchange_gives() -> None:
    best = 0
    for seed in range(100):
        fleet, rails, slots, tp = drawn(seed, most_hosts=3, most_slots=4)
        fewest = min(apart(rails, each)[0] for each in exhaustive(fleet, slots, tp))
        best += apart(rails, match_rails(slots, fleet, rails, tp, wraps=False))[0] == fewest
    assert best >= 90


@pytest.mark.parametrize(("num_hosts", "tp"), list(product((2, 3, 5), (1, 2, 4))))
def test_on_hosts_alike_all_replicas_meet_that_a_stage_has_equally_many_of_on_its_hosts(
    num_hosts: int, tp: int
) -> None:
    hardware = Hardware("a", 8, None, Slot(constant_speed(1.0), Path(1.0)))
    hosts = tuple(FleetHost(f"a{number}", tuple(range(8)), hardware) for number in range(num_hosts))
    fleet = Fleet((HostClass(hardware, hosts),))
    rails = Rails({host.name: {gpu: str(gpu) for gpu in range(8)} for host in hosts})
    room = num_hosts * 8 // tp
    for pp in range(1, room + 1):
        for dp in range(1, room // pp + 1):
            slots = assign_hosts(placement(tp, dp, *[(0,) * dp] * pp), fleet, aligned=False)
            uneven = sum(len(set(Counter(slots[s, r].host for r in range(dp)).values())) > 1 for s in range(pp))
            stages, edges = apart(rails, match_rails(slots, fleet, rails, tp, wraps=False))
            assert stages == uneven
            assert edges == 0 or uneven


def test_nothing_moves_where_no_rails_are_apart() -> None:
    fleet, _, slots, tp = drawn(1)
    assert match_rails(slots, fleet, Rails({}), tp, wraps=False) is slots


def test_slots_that_meet_already_stay_as_they_are() -> None:
    inventory = railed_inventory([2])
    together = railed_inventory([2], apart=False)
    assert railed_plan(inventory, pp=1, dp=16).ranks == railed_plan(together, pp=1, dp=16).ranks
    assert read_problem(together, gpt_7b()).rails.of_hosts == {}
