"""Ranks that share experts or sequences, in one cluster and on whole hosts or a part of one, over unlike clusters."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import PlanRank
from planner.problem.group_places import check_placed_groups, misplaced_group
from tests.planner.fleets import GIB, gpt_7b, gpu_inventory, plan_anew

LONG = {
    **{"family": "llama", "num_layers": 4, "hidden_size": 2048, "num_heads": 16, "num_kv_heads": 8},
    **{"ffn_hidden_size": 5632, "vocab_size": 32000, "seq_length": 16384},
}
EXPERTS = {**LONG, "seq_length": 4096, "experts": 16, "experts_per_token": 2, "expert_ffn": 1024}


def unlike_clusters(shared_gbps: float = 100.0) -> Inventory:
    """Two clusters: one host of 4 GPUs, and two of 4 and of 8."""
    inventory = gpu_inventory(
        [1, 2], memory_bytes=80 * GIB, kinds=["InfiniBand"] * 2, rdma_gbps=400.0, shared_gbps=shared_gbps
    )
    hosts = zip(inventory.hosts, (4, 4, 8), strict=True)
    return inventory.model_copy(
        update={"hosts": tuple(host.model_copy(update={"gpus": host.gpus[:count]}) for host, count in hosts)}
    )


@pytest.mark.parametrize("parallel", [{}, {"ep": 8}])
def test_experts_on_clusters_of_unlike_size_are_planned_inside_one(parallel: dict[str, Any]) -> None:
    plan = plan_anew(unlike_clusters(), gpt_7b(model=EXPERTS, global_batch_size=8, parallel=parallel))
    assert plan.job.ep > 1
    assert misplaced_group(plan.job, plan.ranks) == ()


def test_sequences_are_shared_on_clusters_of_unlike_size_though_a_straddling_stage_is_as_fast() -> None:
    parallel = {"cp": 4, "pp": 2}
    plan = plan_anew(unlike_clusters(400.0), gpt_7b(model=LONG, global_batch_size=8, parallel=parallel))
    assert misplaced_group(plan.job, plan.ranks) == ()


def test_a_job_without_cp_that_cannot_run_is_not_refused_for_a_degree_it_never_set() -> None:
    # Three slots a host, which take no cp 2; placements of cp 1 are found, and three layers let none interleave.
    inventory = gpu_inventory([1], gpus_per_host=3, memory_bytes=8 * GIB)
    job = gpt_7b(model={**LONG, "num_layers": 3}, global_batch_size=4, parallel={"schedule": "interleaved"})
    with pytest.raises(HolmesError, match=r"schedule fixed in job\.yaml"):
        plan_anew(inventory, job)


def test_the_degree_whose_group_is_parted_is_named_where_both_are_above_one() -> None:
    # Replicas 0 to 3 share a sequence and have host x and half of y; pairs of experts are whole.
    job = gpt_7b(model={**EXPERTS, "seq_length": 16384}, parallel={"ep": 2, "cp": 4})
    ranks = [
        PlanRank(rank=n, host=host, cluster="a", local_rank=0, gpu=n, pp_rank=0, dp_rank=n, tp_rank=0)
        for n, host in enumerate("xxyyyyzz")
    ]
    with pytest.raises(HolmesError, match=r"parallel\.cp is 4, .* ranks 0 to 3"):
        check_placed_groups(job, ranks)
