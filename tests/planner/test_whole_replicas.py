"""Replicas in a class each: shares of micro-batches by hand and against every way to share them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.collectives import PassTimes
from planner.problem.candidates import Candidate
from planner.problem.coefficients import Coefficients
from planner.search.whole_replicas import place_whole_replicas
from tests.planner.enumerator import random_coefficients


def two_classes(fast_s: float, slow_s: float, dp: int, microbatches: int) -> Coefficients:
    """One stage of four layers, gradients for nothing, `dp` group slots on a fast and a slow class in two clusters."""
    return replace(
        random_coefficients(1),
        candidate=Candidate(1, 1, dp, 1),
        num_layers=4,
        total_microbatches=dp * microbatches,
        cluster=(0, 1),
        group_slots=(dp, dp),
        group_slots_per_host=(dp, dp),
        memory_bytes=(None, None),
        capacity=((4, 4),),
        layer=tuple(PassTimes(each / 3, 2 * each / 3) for each in (fast_s, slow_s)),
        head=(PassTimes(0.0, 0.0),) * 2,
        net_names=("IB", "IB"),
        fabric_edge_s=(0.0, 0.0),
        shared_edge_s=(0.0, 0.0),
        fabric_sync_s_per_byte=(0.0, 0.0),
        shared_sync_s_per_byte=(0.0, 0.0),
        inside_sync_s_per_byte=(0.0, 0.0),
    )


def test_a_class_twice_as_fast_runs_twice_the_micro_batches() -> None:
    found = place_whole_replicas(two_classes(1.0, 2.0, dp=2, microbatches=6))
    assert found is not None
    assert found.placement.sites == ((0, 1),)
    assert found.placement.microbatches == (8, 4)
    assert found.objective_s == pytest.approx(8 * 4 * 1.0)


def test_classes_of_equal_speed_share_equally() -> None:
    found = place_whole_replicas(two_classes(1.0, 1.0, dp=2, microbatches=6))
    assert found is not None
    assert found.placement.microbatches == (6, 6)


@pytest.mark.parametrize("slow_s", [1.1, 1.5, 1.9, 2.7, 3.3, 5.2])
@pytest.mark.parametrize("microbatches", [2, 5, 8])
def test_no_other_share_of_two_replicas_ends_earlier(slow_s: float, microbatches: int) -> None:
    found = place_whole_replicas(two_classes(1.0, slow_s, dp=2, microbatches=microbatches))
    total = 2 * microbatches
    assert found is not None
    assert sum(found.placement.microbatches) == total
    best_s = min(max(4 * share, 4 * slow_s * (total - share)) for share in range(1, total))
    assert found.objective_s == pytest.approx(best_s)


def test_one_replica_is_not_placed_over_several_classes() -> None:
    assert place_whole_replicas(two_classes(1.0, 2.0, dp=1, microbatches=6)) is None


def test_memory_of_every_class_must_hold_the_cut() -> None:
    coeffs = two_classes(1.0, 2.0, dp=2, microbatches=6)
    assert place_whole_replicas(replace(coeffs, capacity=((4, 3),))) is None


def test_a_fixed_cut_is_kept() -> None:
    coeffs = replace(
        two_classes(1.0, 2.0, dp=2, microbatches=6), candidate=Candidate(1, 2, 2, 1), capacity=((4, 4),) * 2
    )
    found = place_whole_replicas(coeffs, (3, 1))
    assert found is not None
    assert found.placement.layers == (3, 1)


@pytest.mark.parametrize("total", [3, 5, 7])
def test_a_rest_that_does_not_divide_goes_to_one_of_two_equal_classes(total: int) -> None:
    coeffs = replace(two_classes(1.0, 1.0, dp=2, microbatches=0), total_microbatches=total)
    found = place_whole_replicas(coeffs)
    assert found is not None
    assert found.placement.microbatches == (total // 2 + 1, total // 2)
    assert found.objective_s == pytest.approx(4.0 * (total // 2 + 1))


def test_a_million_micro_batches_are_shared_by_pace() -> None:
    found = place_whole_replicas(two_classes(1.0, 2.0, dp=2, microbatches=2**20))
    assert found is not None
    fast, slow = found.placement.microbatches
    assert fast + slow == 2 * 2**20
    assert abs(fast - 2 * slow) <= 2
