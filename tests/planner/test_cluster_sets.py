"""Lower bounds by the clusters that are used: by hand, and on random instances with all placements there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.collectives import PassTimes
from planner.problem.coefficients import FREE, Coefficients
from planner.search.closed_form import blocks_step_s
from planner.search.cluster_sets import ClusterSets, spanning
from planner.search.lower_bounds import LowerBounds
from tests.planner.enumerator import all_blocks, random_coefficients
from tests.planner.test_lower_bounds import clusters_of_one_host, slowest_stage_s
from tests.seeds import seed_ranges


@pytest.mark.parametrize("of", seed_ranges(300, few=30))
def test_no_placement_beats_the_bound_of_the_clusters_it_uses(of: range) -> None:
    for seed in of:
        coeffs = random_coefficients(seed)
        bounds = LowerBounds(coeffs)
        sets, compared = ClusterSets(bounds), 0
        for blocks in all_blocks(coeffs, False):
            pace_s, step_s = slowest_stage_s(coeffs, blocks), blocks_step_s(coeffs, blocks)
            assert sets.least_s(pace_s, bounds.within(pace_s)) <= step_s * (1 + 1e-9), (seed, blocks)
            assert sets.least_s(0.0, bounds.memory) <= step_s * (1 + 1e-9), (seed, blocks)
            compared += 1
        assert compared or sets.least_s(0.0, bounds.memory) > 0


def fast_host_far_away(wire_s: float) -> Coefficients:
    """Two stages of four layers on three clusters: in each of two, one of 0.3 s a layer, in the third two of 0.03 s.

    A message between the first two takes a second, to the third `wire_s`.
    """
    like = clusters_of_one_host(3, 1, pp=2, dp=1)
    return replace(
        like,
        group_slots=(1, 1, 2),
        group_slots_per_host=(1, 1, 2),
        layer=(PassTimes(0.1, 0.2), PassTimes(0.1, 0.2), PassTimes(0.01, 0.02)),
        shared_edge_s=(0.0,) * 3,
        crossings={pair: replace(FREE, edge_s=s) for pair, s in (((0, 1), 1.0), ((0, 2), wire_s), ((1, 2), wire_s))},
    )


def test_a_fast_cluster_is_used_alone_or_by_its_wire() -> None:
    coeffs = fast_host_far_away(wire_s=50.0)
    bounds = LowerBounds(coeffs)
    sets, least_s = ClusterSets(bounds), 4 * 0.03 * coeffs.fill_share
    others_s = 4 * 0.3 * coeffs.fill_share + 2 * 1.0
    assert sets.least_s(0.0, bounds.memory) <= bounds.steady_s(0.0, 0.0) + least_s  # both stages on the fast host
    one = replace(coeffs, group_slots=(1, 1, 1), group_slots_per_host=(1, 1, 1))
    bounds = LowerBounds(one)
    found_s = ClusterSets(bounds).least_s(0.0, bounds.memory)
    assert found_s == pytest.approx(bounds.steady_s(0.0, 1.0) + others_s)  # not with it: 2 x 50 s
    assert bounds.without_sync_s(0.0, bounds.memory) < found_s


def test_no_bound_where_no_clusters_hold_all_layers() -> None:
    coeffs = replace(clusters_of_one_host(2, 1, pp=2, dp=1), capacity=((1, 1),) * 2)
    bounds = LowerBounds(coeffs)
    assert ClusterSets(bounds).least_s(0.0, bounds.memory) == float("inf")


def test_all_clusters_are_joined_by_the_fastest_wires_that_do() -> None:
    seconds = {(0, 1): 5.0, (0, 2): 1.0, (1, 2): 2.0, (0, 3): 9.0, (1, 3): 8.0, (2, 3): 7.0}
    both = seconds | {(y, x): edge_s for (x, y), edge_s in seconds.items()}
    assert spanning((0, 1, 2, 3), both) == [1.0, 2.0, 7.0]
    assert spanning((1,), both) == []
