"""What different degrees in each cluster would gain, where the runtime has one tp and dp for all."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from planner.problem.candidates import Candidate
from planner.problem.problem import read_problem
from planner.search.branch_and_bound import search
from planner.search.placement import Placement, PricedPlacement
from planner.search.unequal_degrees import Offer, best_unequal, cut_layers
from tests.planner.fleets import GIB, gpt_7b, gpu_inventory


def unlike() -> Inventory:
    """A host with eight large GPUs in one cluster, and one with eight that are too small for a stage of one GPU."""
    plain = gpu_inventory([1, 1])
    small = tuple(gpu.model_copy(update={"memory_bytes": 12 * GIB}) for gpu in plain.hosts[1].gpus)
    return plain.model_copy(update={"hosts": (plain.hosts[0], plain.hosts[1].model_copy(update={"gpus": small}))})


def found_for(inventory: Inventory, job: Job) -> Any:
    """What `best_unequal` says of the best placement with equal degrees, and that placement."""
    problem = read_problem(inventory, job)
    equal = search(problem, 60.0).found[0]
    return best_unequal(problem, equal), equal


def test_small_gpus_share_tensors_and_large_ones_need_not() -> None:
    unequal, equal = found_for(unlike(), gpt_7b(global_batch_size=192))
    assert unequal is not None
    assert unequal.placement_s < equal.objective_s
    large, small = unequal.blocks
    assert (large.cluster, small.cluster) == ("a", "b")
    assert large.tp < small.tp
    assert large.dp * large.micro_batch_size == small.dp * small.micro_batch_size  # the same samples at a time
    assert all(block.stages * block.dp * block.tp <= 8 for block in unequal.blocks)


def test_equal_clusters_have_nothing_to_gain() -> None:
    unequal, _ = found_for(gpu_inventory([3, 3]), gpt_7b(global_batch_size=192))
    assert unequal is None


@pytest.mark.parametrize("fixed", [{"pp": 8}, {"dp": 1}, {"micro_batch_size": 1}])
def test_what_job_yaml_fixes_does_not_differ(fixed: dict[str, int]) -> None:
    unequal, _ = found_for(unlike(), gpt_7b(global_batch_size=192, parallel=fixed))
    assert unequal is None


def test_layers_go_to_the_stage_that_is_then_fastest() -> None:
    fast, slow = Offer(0, Candidate(1, 1, 2, 1), 2, 1.0), Offer(1, Candidate(2, 1, 1, 2), 1, 2.0)
    # Five seconds' worth of layers: 4 on each fast stage, 2 on the slow one.
    assert cut_layers(10, [fast, slow]) == [(4, 4), (2,)]
    assert cut_layers(1, [fast, slow]) == [(1,), ()]


def test_a_step_already_faster_than_any_is_left_alone() -> None:
    job = gpt_7b(global_batch_size=192)
    placement = Placement(Candidate(1, 1, 1, 1), (36,), ((0,),), (192,))
    assert best_unequal(read_problem(unlike(), job), PricedPlacement(1e-9, placement)) is None
