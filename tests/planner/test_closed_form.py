"""The closed form and its bound against numbers worked by hand."""

from __future__ import annotations

import pytest

from planner.candidates import Candidate
from planner.closed_form import least_pace_s, lower_bound_s, step_s
from planner.terms import Terms, rings_at_once


def terms(pp: int = 2, dp: int = 1, num_microbatches: int = 4, capacity: int = 8) -> Terms:
    """Two clusters of two places, eight layers: a takes 1 s a layer, b 2 s; edges 0.5 s inside, 3 s across."""
    return Terms(
        candidate=Candidate(1, pp, dp, 1),
        num_layers=8,
        num_microbatches=num_microbatches,
        cluster_names=("a", "b"),
        places=(2, 2),
        capacity=((capacity, capacity),) * pp,
        layer_s=(1.0, 2.0),
        head_s=(0.25, 0.5),
        fabric_edge_s=(0.5, 0.5),
        shared_edge_s=(3.0, 3.0),
        fabric_sync_s_per_byte=(0.1, 0.1),
        shared_sync_s_per_byte=(1.0, 1.0),
        stage_groups_per_nic=(1, 1),
        layer_gradient_bytes=10,
        first_gradient_bytes=2,
        last_gradient_bytes=3,
    )


def test_one_stage_computes_all_microbatches_then_reduces() -> None:
    # 4 x (8 + 0.25) s and 0.1 x (80 + 2 + 3) s.
    assert step_s(terms(pp=1, dp=2), (8,), [(0, 0)]) == pytest.approx(33 + 8.5)


def test_an_edge_inside_a_cluster_delays_every_microbatch() -> None:
    # Stages of 4 and 4.25 s; the loop through both takes 4 + 4.25 + 2 x 0.5 s for two micro-batches: 4.625 s each.
    # 3 x 4.625 + 8.25 + 2 x 0.5; gradients 0.1 x 43 s.
    assert step_s(terms(), (4, 4), [(0,), (0,)]) == pytest.approx(3 * 4.625 + 8.25 + 1 + 4.3)


def test_an_edge_between_clusters_uses_the_shared_network() -> None:
    # Stages of 5 and 3 x 2 + 0.5 s; loop (5 + 6.5 + 6) / 2 = 8.75 s; gradients 0.1 x 52 s of the first stage.
    assert step_s(terms(), (5, 3), [(0,), (1,)]) == pytest.approx(3 * 8.75 + 11.5 + 6 + 5.2)


def test_without_enough_microbatches_no_loop_closes() -> None:
    # m = 2 = p: the pace is the slower stage.
    assert step_s(terms(num_microbatches=2), (5, 3), [(0,), (1,)]) == pytest.approx(6.5 + 11.5 + 6 + 5.2)


def test_replicas_that_stay_in_their_clusters_cross_only_for_gradients() -> None:
    # Both stages on both clusters: 8 and 8.5 s at b's pace; loop (16.5 + 1) / 2; gradients 1.0 x 43 s.
    assert step_s(terms(dp=2), (4, 4), [(0, 1), (0, 1)]) == pytest.approx(3 * 8.75 + 16.5 + 1 + 43)


def test_swapped_replicas_cross_for_every_message() -> None:
    stays = step_s(terms(dp=2), (4, 4), [(0, 1), (0, 1)])
    assert step_s(terms(dp=2), (4, 4), [(0, 1), (1, 0)]) > stays


def test_pace_bound_fills_fast_clusters_first() -> None:
    # Two stages fit on a: four layers each, 4 s.
    assert least_pace_s(terms()) == 4
    # Three stages: two on a and one on b; at 3 s they hold 3 + 3 + 1, at 4 s 4 + 4 + 2.
    assert least_pace_s(terms(pp=3)) == 4


def test_no_bound_where_memory_is_too_small() -> None:
    assert lower_bound_s(terms(capacity=3)) is None


def test_bound_of_one_stage_is_its_cost_without_the_gradients_of_its_ends() -> None:
    # 4 x 8.25 s on a, and 0.1 x 80 s.
    assert lower_bound_s(terms(pp=1, dp=2)) == pytest.approx(33 + 8)


@pytest.mark.parametrize(
    ("places", "dp", "rings"),
    [((8, 8), 8, 0), ((8, 8), 16, 1), ((8, 8), 4, 0), ((1, 1, 1), 2, 1), ((4, 4, 4), 3, 2), ((3,), 2, 0)],
)
def test_rings_that_leave_a_host_at_once(places: tuple[int, ...], dp: int, rings: int) -> None:
    assert rings_at_once(places, dp) == rings
