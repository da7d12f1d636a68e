"""The closed form and its bounds against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.collectives import PassTimes
from planner.problem.candidates import Candidate
from planner.problem.coefficients import Coefficients
from planner.problem.exchange_rates import rings_on_nic
from planner.search.closed_form import SiteBlock, blocks_step_s, price_hosts_s
from planner.search.lower_bounds import LowerBounds

CLASS_OF = {"a1": 0, "a2": 0, "b1": 1, "b2": 1}


def coeffs(pp: int = 2, dp: int = 1, num_microbatches: int = 4, capacity: int = 8, per_host: int = 1) -> Coefficients:
    """Clusters of two group slots, eight layers: a takes 1 s a layer, b 2 s; edges 0.5 s inside, 3 s across."""
    return Coefficients(
        candidate=Candidate(1, pp, dp, 1),
        num_layers=8,
        total_microbatches=dp * num_microbatches,
        cluster=(0, 1),
        group_slots=(2, 2),
        group_slots_per_host=(per_host, per_host),
        memory_bytes=(None, None),
        capacity=((capacity, capacity),) * pp,
        layer=(PassTimes(0.25, 0.75), PassTimes(0.5, 1.5)),
        head=(PassTimes(0.125, 0.125), PassTimes(0.25, 0.25)),
        net_names=(None, None),
        fabric_edge_s=(0.5, 0.5),
        shared_edge_s=(3.0, 3.0),
        fabric_port_s=(0.5, 0.5),
        shared_port_s=(3.0, 3.0),
        has_one_nic=(False, False),
        fabric_sync_s_per_byte=(0.25, 0.25),
        shared_sync_s_per_byte=(1.0, 1.0),
        inside_sync_s_per_byte=(0.125, 0.125),
        layer_sync_bytes=10,
        first_sync_bytes=2,
        last_sync_bytes=3,
        action_s=(0.0, 0.0),
        hides_edges=True,
    )


def blocks(*parts: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[SiteBlock, ...]:
    """Blocks of (site, layers)."""
    return tuple(SiteBlock(*part) for part in parts)


def test_one_stage_computes_all_microbatches_then_exchanges_what_the_last_one_does_not_hide() -> None:
    # 4 x (8 + 0.25) s; 0.25 x (80 + 2 + 3) - 8.25 s.
    assert blocks_step_s(coeffs(pp=1, dp=2), blocks(((0,), (8,)))) == pytest.approx(33 + 21.25 - 8.25)


def test_gradients_inside_a_host_take_what_joins_its_gpus() -> None:
    # As before with 0.125 s a byte: 85 x 0.125 - 8.25 s.
    assert blocks_step_s(coeffs(pp=1, dp=2, per_host=2), blocks(((0,), (8,)))) == pytest.approx(33 + 10.625 - 8.25)


def test_edges_that_a_stage_hides_cost_the_fill_alone() -> None:
    # Stages of 4 and 4.25 s: 3 x 4.25 + 8.25 + 2 x 0.5.
    assert blocks_step_s(coeffs(), blocks(((0,), (4, 4)))) == pytest.approx(12.75 + 8.25 + 1)


def test_an_edge_between_clusters_uses_the_shared_network() -> None:
    # Stages of 5 and 3 x 2 + 0.5 s.
    assert blocks_step_s(coeffs(), blocks(((0,), (5,)), ((1,), (3,)))) == pytest.approx(3 * 6.5 + 11.5 + 6)


def test_a_slow_edge_sets_the_pace() -> None:
    slow = replace(coeffs(), shared_edge_s=(20.0, 3.0))
    assert blocks_step_s(slow, blocks(((0,), (5,)), ((1,), (3,)))) == pytest.approx(3 * 20 + 11.5 + 40)


def test_a_nic_that_two_edges_of_a_host_use_sets_the_pace() -> None:
    # Stages of 2, 2, 4 and 4.5 s; both middle hosts send 3 s inside their cluster and 3 s across by one NIC.
    one_nic = replace(coeffs(pp=4), fabric_port_s=(3.0, 3.0), has_one_nic=(True, True))
    two_nics = replace(one_nic, has_one_nic=(False, False))
    in_line = blocks(((0,), (2, 2)), ((1,), (2, 2)))
    rest_s = 4.5 + 8 + 2 * (0.5 + 3 + 0.5)
    assert blocks_step_s(two_nics, in_line) == pytest.approx(3 * 4.5 + rest_s)
    assert blocks_step_s(one_nic, in_line) == pytest.approx(3 * 6 + rest_s)


def test_a_schedule_that_hides_nothing_waits_for_the_edge_with_each_microbatch() -> None:
    plain = replace(coeffs(), hides_edges=False)
    assert blocks_step_s(plain, blocks(((0,), (5,)), ((1,), (3,)))) == pytest.approx(3 * 9.5 + 11.5 + 6)


def test_edges_inside_a_host_are_free() -> None:
    assert blocks_step_s(coeffs(per_host=2), blocks(((0,), (4, 4)))) == pytest.approx(12.75 + 8.25)


def test_one_layers_gradients_are_never_hidden() -> None:
    fast = replace(coeffs(pp=1, dp=2), fabric_sync_s_per_byte=(0.01, 0.01))
    assert blocks_step_s(fast, blocks(((0,), (8,)))) == pytest.approx(33 + 0.1)


def test_ranks_are_priced_as_the_blocks_they_stand_in() -> None:
    found = price_hosts_s(coeffs(), CLASS_OF, (5, 3), [["a1"], ["b1"]], (4,))
    assert found == pytest.approx(blocks_step_s(coeffs(), blocks(((0,), (5,)), ((1,), (3,)))))


def test_replicas_that_stay_in_their_clusters_are_lanes_of_their_own() -> None:
    # On b with one micro-batch: 8 + 8.5 + 2 x 0.5; on a with seven: 6 x 4.25 + 8.25 + 1 = 34.75. Exchange over the
    # shared network, one group a host: 43 - 8.5 s.
    found = price_hosts_s(coeffs(dp=2), CLASS_OF, (4, 4), [["a1", "b1"], ["a2", "b2"]], (7, 1))
    assert found == pytest.approx(34.75 + 43 - 8.5)


def test_swapped_replicas_cross_for_every_message() -> None:
    stays = price_hosts_s(coeffs(dp=2), CLASS_OF, (4, 4), [["a1", "b1"], ["a2", "b2"]], (4, 4))
    assert price_hosts_s(coeffs(dp=2), CLASS_OF, (4, 4), [["a1", "b1"], ["b2", "a2"]], (4, 4)) > stays


def test_stages_of_several_replicas_on_one_host_share_its_nic() -> None:
    wide = replace(coeffs(dp=2, per_host=2), group_slots=(4, 4))
    apart = price_hosts_s(wide, CLASS_OF, (4, 4), [["a1", "a2"], ["a1", "a2"]], (4, 4))
    together = price_hosts_s(wide, CLASS_OF, (4, 4), [["a1", "a1"], ["a2", "a2"]], (4, 4))
    # Two groups share each NIC: 0.5 x 43 - 4.25 s; inside a host what one layer takes, 0.125 x 10 s. And the edge,
    # inside hosts in the one, between them in the other.
    assert apart - together == pytest.approx(0.5 * 43 - 4.25 - 1.25 - 1)


def test_pace_bound_fills_fast_classes_first_and_leaves_room_for_the_head() -> None:
    # Two stages fit on a: four layers each, the last with the head.
    bounds = LowerBounds(coeffs())
    assert bounds.paces_s[bounds.first_pace] == 4.25
    # Three stages: two on a and one on b. At 4 s they hold 4 + 4 + 2, less one for the head.
    bounds = LowerBounds(coeffs(pp=3))
    assert bounds.paces_s[bounds.first_pace] == 4


def test_no_bound_where_memory_is_too_small() -> None:
    assert LowerBounds(coeffs(capacity=3)).full_bound_s is None


def test_bound_takes_each_part_from_where_it_is_least() -> None:
    # Compute on a: 33 s. Gradients on b, whose longer micro-batch hides more: 21.25 - 16.5 s.
    assert LowerBounds(coeffs(pp=1, dp=2)).full_bound_s == pytest.approx(33 + 4.75)


@pytest.mark.parametrize(
    ("group_slots_per_host", "dp", "rings"), [(8, 8, 0), (8, 16, 1), (8, 4, 0), (1, 2, 1), (3, 2, 0), (4, 6, 1)]
)
def test_dp_groups_that_share_a_nic_where_stages_begin_at_hosts(group_slots_per_host: int, dp: int, rings: int) -> None:
    roomy = replace(
        coeffs(dp=dp), group_slots=(64 * group_slots_per_host,) * 2, group_slots_per_host=(group_slots_per_host,) * 2
    )
    assert rings_on_nic(roomy, (0,)) == rings


def test_stages_share_hosts_only_where_group_slots_are_short() -> None:
    tight = replace(coeffs(pp=3, dp=2), group_slots=(3, 3), group_slots_per_host=(3, 3))
    assert not tight.aligned
    roomy = replace(coeffs(pp=2, dp=2), group_slots=(3, 3), group_slots_per_host=(3, 3))
    assert roomy.aligned
    assert roomy.most_stages == (1, 1)


def test_a_stage_over_several_clusters_is_alone_on_the_shared_network() -> None:
    one_cluster = replace(coeffs(dp=2), cluster=(0, 0))
    assert rings_on_nic(coeffs(dp=2), (0, 1)) == 1
    assert rings_on_nic(one_cluster, (0, 1)) == 2


def test_whole_replicas_of_a_host_reduce_at_once() -> None:
    # On hosts of eight tensor groups all four stages of one replica are on one host, and so are those of two.
    wide = replace(coeffs(pp=4, dp=3), group_slots_per_host=(8, 8))
    assert rings_on_nic(wide, (0, 1), {0: 1, 1: 2}) == 4
    assert rings_on_nic(wide, (0, 1), {0: 8, 1: 4}) == 2
