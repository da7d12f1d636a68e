"""Every check of `verify` notices the plan it is there for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holmes_core.records.plan import Plan
from planner.layout.verify import verify
from tests.planner.fleets import GIB, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for

BED = cpu_inventory([2, 2])
PLAN = plan_for(BED, bed_job(parallel={"pp": 2, "dp": 2, "schedule": "1f1b"}))


def changed(plan: Plan, field: str, index: int, /, **update: Any) -> Plan:
    """The plan with one entry of one of its tuples changed, unchecked."""
    entries = list(getattr(plan, field))
    entries[index] = entries[index].model_copy(update=update)
    return plan.model_copy(update={field: tuple(entries)})


TAMPERED: dict[str, Callable[[], Plan]] = {
    "not 32": lambda: PLAN.model_copy(update={"microbatches": (5, 5)}),
    "the job fixes 2": lambda: PLAN.model_copy(update={"dp": 1}),
    "host b1 is not in cluster a": lambda: changed(PLAN, "ranks", 2, cluster="a"),
    "host c9 is not in cluster b": lambda: changed(PLAN, "ranks", 2, host="c9"),
    "are held 2 times": lambda: changed(PLAN, "ranks", 1, dp_rank=0),
    "ranks are not 0..3 in order": lambda: changed(PLAN, "ranks", 1, rank=2),
    "rank 1 is (a2, 1), not (a2, 0)": lambda: changed(PLAN, "ranks", 1, local_rank=1),
    "has no slot 0 with GPU 3": lambda: changed(PLAN, "ranks", 1, gpu=3),
    "has no slot 1 with GPU None": lambda: changed(PLAN, "ranks", 1, host="a1", local_rank=1),
    "CPU 2 of host a1 is assigned twice": lambda: changed(PLAN, "ranks", 0, cpus="0-3,2"),
    "do not cover layers 0..10": lambda: changed(PLAN, "stages", 0, stop_layer=4),
    "stages are not 0..1": lambda: changed(PLAN, "stages", 0, index=1),
    "stage 0 names clusters ('b',)": lambda: changed(PLAN, "stages", 0, clusters=("b",)),
    "node a1 has 2 ranks": lambda: changed(PLAN, "nodes", 0, num_ranks=2),
    "nodes are not": lambda: changed(PLAN, "nodes", 0, node_rank=1),
    "is not its shared port": lambda: changed(PLAN, "nodes", 0, shared_netdev="eth1"),
    "group dp/stage0 with ranks (0, 1) is missing": lambda: PLAN.model_copy(update={"groups": PLAN.groups[1:]}),
    "group dp/stage0 with ranks (0, 2) is not demanded": lambda: changed(PLAN, "groups", 0, ranks=(0, 2)),
    "the groups are not in plan order": lambda: PLAN.model_copy(update={"groups": PLAN.groups[::-1]}),
    "has no interface eth7": lambda: changed(PLAN, "groups", 0, interfaces=("eth7", "eth1")),
    "eth0 of host a1 is not on network a": lambda: changed(PLAN, "groups", 0, interfaces=("eth0", "eth1")),
    "network a does not join its clusters": lambda: changed(PLAN, "groups", 2, network="a"),
    "network z does not join its clusters": lambda: changed(PLAN, "groups", 0, network="z"),
    "has 2 ranks and 1 interfaces": lambda: changed(PLAN, "groups", 0, interfaces=("eth1",)),
    "has no RDMA port": lambda: changed(PLAN, "groups", 0, net_name="IB"),
    "predicted memory": lambda: PLAN.model_copy(
        update={"prediction": PLAN.prediction.model_copy(update={"memory_bytes": (1, 2)})}
    ),
    "the closed form is": lambda: PLAN.model_copy(
        update={"solve": PLAN.solve.model_copy(update={"placement_s": PLAN.solve.placement_s * 1.00001})}
    ),
    "below the least one found": lambda: PLAN.model_copy(
        update={"solve": PLAN.solve.model_copy(update={"objective_s": PLAN.solve.objective_s * 2})}
    ),
    "schedule is gpipe, but the job fixes 1f1b": lambda: PLAN.model_copy(update={"schedule": "gpipe"}),
    "a replica runs no micro-batch": lambda: PLAN.model_copy(update={"microbatches": (PLAN.microbatches[0] * 2, 0)}),
    "has one chunk": lambda: PLAN.model_copy(update={"chunks": 2}),
    "below the bound": lambda: PLAN.model_copy(
        update={"solve": PLAN.solve.model_copy(update={"bound_s": PLAN.solve.objective_s * 2})}
    ),
}


def test_an_untouched_plan_verifies() -> None:
    assert verify(PLAN, BED) == []


@pytest.mark.parametrize("fault", list(TAMPERED))
def test_tampering_is_noticed(fault: str) -> None:
    assert any(fault in found for found in verify(TAMPERED[fault](), BED))


def test_a_cut_other_than_the_fixed_one_is_noticed() -> None:
    plan = plan_for(BED, bed_job(parallel={"layers": [7, 3], "dp": 2}))
    moved = changed(changed(plan, "stages", 0, stop_layer=6), "stages", 1, first_layer=6)
    assert any("differ from the cut (7, 3)" in fault for fault in verify(moved, BED))


def test_a_rank_that_outgrows_its_gpu_is_noticed() -> None:
    inventory = gpu_inventory([1, 1], gpus_per_host=1)
    plan = plan_for(inventory, gpt_7b(parallel={"pp": 2}))
    smaller = gpu_inventory([1, 1], gpus_per_host=1, memory_bytes=60 * GIB)
    assert any("its GPU has" in fault for fault in verify(plan, smaller))


def test_a_tensor_group_over_two_hosts_is_noticed() -> None:
    inventory = gpu_inventory([2], gpus_per_host=2, kinds=("InfiniBand",))
    plan = plan_for(inventory, gpt_7b(parallel={"tp": 2, "pp": 2, "dp": 1}))
    swapped = changed(changed(plan, "ranks", 1, pp_rank=1, tp_rank=0), "ranks", 2, pp_rank=0, tp_rank=1)
    assert any("spans several hosts" in fault for fault in verify(swapped, inventory))
