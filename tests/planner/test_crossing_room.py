"""Room for stages over several clusters: by hand, and on random instances for every placement there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from planner.cost.collectives import PassTimes
from planner.problem.candidates import Candidate
from planner.problem.coefficients import Coefficients
from planner.problem.exchange_rates import rings_on_nic, sync_s_per_byte
from planner.search.closed_form import SiteBlock, exposed_sync_s, site_stage_s
from planner.search.crossing_room import CrossingRoom
from tests.planner.enumerator import all_blocks, random_coefficients
from tests.seeds import few_of

ANY_S = 1e6


def pace_and_sync_s(coeffs: Coefficients, blocks: Sequence[SiteBlock]) -> tuple[float, float]:
    """The slowest stage of a placement, and its longest exposed exchange."""
    stages = [(block, held) for block in blocks for held in block.layers]
    paces_s, syncs_s = [], [0.0]
    for s, (block, held) in enumerate(stages):
        paces_s.append(site_stage_s(coeffs, block.site, held, (s == 0, s == len(stages) - 1)))
        rate = sync_s_per_byte(coeffs, block.site, rings_on_nic(coeffs, block.site), is_even=block.is_even)
        syncs_s.append(exposed_sync_s(coeffs, rate, coeffs.sync_bytes(s, held), paces_s[-1]))
    return max(paces_s), max(syncs_s) if coeffs.candidate.dp > 1 else 0.0


def two_clusters(group_slots: tuple[int, int], dp: int, pp: int, num_layers: int) -> Coefficients:
    """Two clusters of one class each, a layer a second, where memory holds four layers."""
    classes = len(group_slots)
    return replace(
        random_coefficients(0),
        candidate=Candidate(1, pp, dp, 1),
        num_layers=num_layers,
        cluster=(0, 1),
        group_slots=group_slots,
        group_slots_per_host=(1,) * classes,
        capacity=((4,) * classes,) * pp,
        layer=(PassTimes(0.5, 0.5),) * classes,
        head=(PassTimes(0.0, 0.0),) * classes,
        net_names=("IB", "Socket"),
        crossings={},
        fabric_sync_s_per_byte=(1e-3,) * classes,
        shared_sync_s_per_byte=(1.0,) * classes,
        layer_sync_bytes=1,
        first_sync_bytes=0,
        last_sync_bytes=0,
    )


@pytest.mark.parametrize(("seeds", "at_least"), few_of(1, [(20, 100), (100, 1000)]))
def test_every_placement_with_a_stage_over_clusters_has_room(seeds: int, at_least: int) -> None:
    seen = 0
    for seed in range(seeds):
        coeffs = random_coefficients(seed)
        room = CrossingRoom(coeffs)
        for blocks in all_blocks(coeffs, True):
            assert room.may_hold(*pace_and_sync_s(coeffs, blocks)), (seed, blocks)
            seen += 1
    assert seen > at_least


def test_what_clusters_have_left_may_not_do_for_equal_shares() -> None:
    """Two stages of four are inside; the third has 2 and 2 slots left, or 1 and 3, for one ring that takes thrice."""
    assert CrossingRoom(two_clusters((6, 6), dp=4, pp=3, num_layers=3)).may_hold(ANY_S, 0.5)
    assert not CrossingRoom(two_clusters((5, 7), dp=4, pp=3, num_layers=3)).may_hold(ANY_S, 0.5)
    assert CrossingRoom(two_clusters((5, 7), dp=4, pp=3, num_layers=3)).may_hold(ANY_S, 1.0)


def test_a_stage_over_clusters_takes_slots_from_the_stages_inside() -> None:
    """Of 4 and 4 slots four stages of two would be inside; beside one that crosses there are but two more."""
    assert not CrossingRoom(two_clusters((4, 4), dp=2, pp=4, num_layers=4)).may_hold(ANY_S, ANY_S)
    assert CrossingRoom(two_clusters((4, 4), dp=2, pp=3, num_layers=4)).may_hold(ANY_S, ANY_S)


def test_layers_that_the_pace_or_the_exchange_leaves_no_time_for_have_no_room() -> None:
    coeffs = two_clusters((3, 3), dp=2, pp=3, num_layers=6)
    assert CrossingRoom(coeffs).may_hold(2.0, 1.0)
    assert not CrossingRoom(coeffs).may_hold(1.0, 1.0)
    assert not CrossingRoom(coeffs).may_hold(2.0, 0.1)
