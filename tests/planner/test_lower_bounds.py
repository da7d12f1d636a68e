"""Lower bounds by hand, and on random instances with what brute force finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from planner.cost.collectives import PassTimes
from planner.problem.candidates import Candidate
from planner.problem.coefficients import Coefficients
from planner.search.closed_form import SiteBlock, blocks_step_s, layers_within, site_stage_s
from planner.search.lower_bounds import LayerLimits, LowerBounds
from tests.planner.enumerator import all_blocks, random_coefficients
from tests.seeds import seed_ranges


def slowest_stage_s(coeffs: Coefficients, blocks: Sequence[SiteBlock]) -> float:
    """The pace of a placement."""
    stages = [(block.site, held) for block in blocks for held in block.layers]
    last = len(stages) - 1
    return max(site_stage_s(coeffs, site, held, (s == 0, s == last)) for s, (site, held) in enumerate(stages))


@pytest.mark.parametrize(
    ("seconds", "layer_s", "most", "layers"),
    [(3.0, 1.0, 9, 3), (2.999, 1.0, 9, 2), (0.3, 0.1, 9, 3), (100.0, 1.0, 9, 9), (-1.0, 1.0, 9, 0), (1.0, 0.0, 9, 9)],
)
def test_layers_within_seconds(seconds: float, layer_s: float, most: int, layers: int) -> None:
    assert layers_within(seconds, layer_s, most) == layers


def test_both_limits_are_the_lesser_of_each() -> None:
    one, other = LayerLimits((3, 1), (4, 4), (2, 5)), LayerLimits((2, 2), (5, 3), (2, 6))
    assert one.both(other) == LayerLimits((2, 1), (4, 3), (2, 5))


def test_every_stage_of_every_placement_is_within_the_limits_of_its_pace() -> None:
    for seed in range(30):
        coeffs = random_coefficients(seed)
        bounds = LowerBounds(coeffs)
        for blocks in all_blocks(coeffs, False):
            stages = [(block.site, held) for block in blocks for held in block.layers]
            middle = bounds.within(slowest_stage_s(coeffs, blocks)).middle
            assert all(held <= middle[c] for site, held in stages for c in site), seed


def test_no_placement_keeps_a_pace_before_the_first() -> None:
    for seed in range(60):
        coeffs = random_coefficients(seed)
        bounds = LowerBounds(coeffs)
        assert bounds.paces_s == sorted(bounds.paces_s)
        for blocks in all_blocks(coeffs, False):
            assert slowest_stage_s(coeffs, blocks) >= bounds.paces_s[bounds.first_pace] * (1 - 1e-9), seed


def test_a_bound_from_a_pace_is_no_higher_than_the_bound_at_it() -> None:
    for seed in range(60):
        bounds = LowerBounds(random_coefficients(seed))
        for pace_s in bounds.paces_s[bounds.first_pace :]:
            assert bounds.from_pace_s(pace_s) <= bounds.at_pace_s(pace_s) * (1 + 1e-9), seed


@pytest.mark.parametrize("of", seed_ranges(150, few=15))
@pytest.mark.parametrize("mixed", [False, True])
def test_no_placement_beats_the_bound_at_its_pace(mixed: bool, of: range) -> None:
    for seed in of:
        coeffs = random_coefficients(seed)
        bounds = LowerBounds(coeffs, mixed)
        for blocks in all_blocks(coeffs, mixed):
            bound_s = bounds.at_pace_s(slowest_stage_s(coeffs, blocks))
            assert bound_s <= blocks_step_s(coeffs, blocks) * (1 + 1e-9), (seed, blocks)


def test_bounds_hold_at_slower_paces_where_the_fill_is_longer_than_that_of_1f1b() -> None:
    """With slow NICs a slower stage costs nothing while others fill faster: bounds were up to 0.2 % too high."""
    for seed in range(60):
        some = random_coefficients(seed)
        slow = tuple(10 * sum(some.layer_s) for _ in some.cluster)
        rates = {"fabric_port_s": slow, "shared_port_s": slow, "fabric_edge_s": slow, "shared_edge_s": slow}
        coeffs = replace(some, fill_share=4.0, **rates)  # type: ignore[arg-type]
        bounds = LowerBounds(coeffs)
        for blocks in all_blocks(coeffs, False):
            step_s, pace_s = blocks_step_s(coeffs, blocks), slowest_stage_s(coeffs, blocks)
            assert bounds.full_bound_s is not None
            assert bounds.full_bound_s <= step_s * (1 + 1e-9), (seed, blocks)
            assert bounds.at_pace_s(pace_s) <= step_s * (1 + 1e-9), (seed, blocks)


def clusters_of_one_host(number: int, group_slots: int, pp: int, dp: int) -> Coefficients:
    """Equal hosts in clusters of their own: networks take nothing inside, and a second a message or byte between."""
    like, each = random_coefficients(0), range(number)
    return replace(
        like,
        candidate=Candidate(1, pp, dp, 1),
        num_layers=4,
        cluster=tuple(each),
        group_slots=(group_slots,) * number,
        group_slots_per_host=(group_slots,) * number,
        memory_bytes=(None,) * number,
        capacity=((4,) * number,) * pp,
        net_names=(None,) * number,
        layer=(PassTimes(0.1, 0.2),) * number,
        head=(PassTimes(0.0, 0.0),) * number,
        fabric_edge_s=(0.0,) * number,
        shared_edge_s=(1.0,) * number,
        fabric_sync_s_per_byte=(0.0,) * number,
        shared_sync_s_per_byte=(1.0,) * number,
        inside_sync_s_per_byte=(0.0,) * number,
        action_s=(0.0,) * number,
        crossings={},
    )


@pytest.mark.parametrize(
    ("clusters", "group_slots", "mixed", "crossed"),
    [
        (4, 2, False, 3),  # one stage in each
        (2, 4, False, 1),  # two in each
        (5, 2, True, 3),  # no two stages are in one, whichever straddle two
        (3, 4, True, 2),  # one straddles two, and three are in two at least
        (2, 6, True, 1),  # three in one, and one straddles both
        (4, 1, True, 3),  # none has room for a stage
    ],
)
def test_stages_that_no_cluster_holds_together_cross_between_clusters(
    clusters: int, group_slots: int, mixed: bool, crossed: int
) -> None:
    bounds = LowerBounds(clusters_of_one_host(clusters, group_slots, pp=4, dp=2), mixed)
    assert bounds.least_edges_s[0] == crossed


def test_where_no_cluster_holds_a_stage_every_layer_is_exchanged_between_clusters() -> None:
    # Four replicas, two in each of two clusters: across, two groups send a quarter of a byte each, where one ring of
    # all four sends 3/4, so a byte takes 2/3 s. Layers have 2 bytes, the embedding 1 and the head 3; a layer computes
    # 0.3 s. The best cut is 3 and 1, whose first stage exposes 2/3 (3 x 2 + 1) - 3 x 0.3. No bound may be above that;
    # with 2 layers or more on one of the stages none should be below what two layers expose.
    coeffs = clusters_of_one_host(4, 2, pp=2, dp=4)
    bounds = LowerBounds(coeffs, mixed=True)
    least_s = bounds.least_sync_s(bounds.memory)
    assert 2 / 3 * 2 * 2 - 2 * 0.3 <= least_s <= 2 / 3 * 7 - 3 * 0.3
