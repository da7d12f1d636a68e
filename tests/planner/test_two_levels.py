"""Data parallelism inside clusters first, then across: when plans take it, and what it costs."""

from __future__ import annotations

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from launcher.prepare.prepare import run_config_of
from planner.layout.reprice import reprice
from planner.layout.verify import verify
from tests.planner.fleets import GBPS, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.planner.measured_links import with_trunk

ALL_DATA = bed_job(parallel={"pp": 1, "dp": 4})
BED = cpu_inventory([2, 2], fabric_gbps=0.5, shared_gbps=0.05)


def across_bytes(plan: Plan) -> int:
    """The most that an interface on the shared network sends a step."""
    return max(traffic.sent_bytes for traffic in plan.prediction.traffic if traffic.network == "shared")


def flat(inventory: Inventory) -> Plan:
    """The plan where a cluster has one replica more than the other, so that two levels are not possible."""
    return plan_for(inventory, bed_job(parallel={"pp": 1, "dp": 3}, global_batch_size=24))


def test_replicas_over_two_clusters_add_up_inside_them_first() -> None:
    plan = plan_for(BED, ALL_DATA)
    assert plan.data_parallel == "hierarchical"
    found = {group.name: (group.axis, group.ranks, group.network) for group in plan.groups}
    assert found == {
        "dp/stage0/a": ("dp", (0, 1), "a"),
        "dp/stage0/b": ("dp", (2, 3), "b"),
        "dp_across/stage0/0": ("dp_across", (0, 2), "shared"),
        "dp_across/stage0/1": ("dp_across", (1, 3), "shared"),
    }


def test_half_of_the_weights_and_half_of_the_gradients_cross_of_a_half() -> None:
    plan = plan_for(BED, ALL_DATA)
    inside = max(traffic.sent_bytes for traffic in plan.prediction.traffic if traffic.network != "shared")
    assert across_bytes(plan) == pytest.approx(inside / 2, rel=1e-6)


def test_unequal_numbers_of_replicas_stay_flat() -> None:
    assert flat(BED).data_parallel == "flat"


def test_one_replica_a_cluster_has_nothing_to_add_up_first() -> None:
    assert plan_for(cpu_inventory([1, 1]), bed_job(parallel={"pp": 1, "dp": 2})).data_parallel == "flat"


def test_stages_in_one_cluster_stay_flat() -> None:
    assert plan_for(BED, bed_job()).data_parallel == "flat"


def test_it_takes_less_than_half_as_long_as_flat() -> None:
    plan = plan_for(BED, ALL_DATA)
    as_flat = plan.model_copy(update={"data_parallel": "flat", "groups": ()})
    assert reprice(BED, as_flat).step_s > 2.4 * plan.prediction.step_s


def test_groups_across_share_a_trunk() -> None:
    plan = plan_for(with_trunk(BED, "ab", 0.03 * GBPS), ALL_DATA)
    assert {g.trunk_bytes_per_s for g in plan.groups if g.axis == "dp_across"} == {0.015 * GBPS}


def test_a_plan_in_two_levels_verifies_is_priced_again_alike_and_runs() -> None:
    for inventory, job in (
        (BED, ALL_DATA),
        (gpu_inventory([2, 2]), gpt_7b(parallel={"pp": 1, "dp": 32}, model={"preset": None, **SMALL})),
    ):
        plan = plan_for(inventory, job)
        assert plan.data_parallel == "hierarchical"
        assert verify(plan, inventory) == []
        assert reprice(inventory, plan).step_s == pytest.approx(plan.prediction.step_s)
        assert run_config_of(plan, "run").data_parallel == "hierarchical"


SMALL = {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "seq_length": 512, "vocab_size": 1000}
