"""The simulation against timelines worked by hand."""

from __future__ import annotations

import pytest

from holmes_runtime.schedule import Action, ActionKind, one_f_one_b
from planner.simulate import Bucket, Interval, PipelineTimes, reduce_end_s, run_pipeline, simulate

FORWARD, BACKWARD = ActionKind.FORWARD, ActionKind.BACKWARD


def times(stages: int, edge_s: float = 0.0) -> PipelineTimes:
    """Equal stages: forward 1 s, backward 2 s."""
    edges = (edge_s,) * (stages - 1)
    return PipelineTimes((1.0,) * stages, (2.0,) * stages, edges, edges)


def test_one_stage_takes_the_sum() -> None:
    assert simulate(one_f_one_b(1, 4), [times(1)]) == 12


def test_without_edges_1f1b_takes_m_plus_p_minus_1() -> None:
    assert simulate(one_f_one_b(4, 8), [times(4)]) == (8 + 4 - 1) * 3


def test_two_stage_timeline_by_hand() -> None:
    run = run_pipeline(one_f_one_b(2, 2), times(2, edge_s=0.5))
    # Stage 0: F0 0-1, F1 1-2. Stage 1: F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5, B1 5.5-7.5. Stage 0: B0 5-7, B1 8-10.
    assert run == {
        Action(0, FORWARD, 0): Interval(0, 1),
        Action(0, FORWARD, 1): Interval(1, 2),
        Action(1, FORWARD, 0): Interval(1.5, 2.5),
        Action(1, BACKWARD, 0): Interval(2.5, 4.5),
        Action(1, FORWARD, 1): Interval(4.5, 5.5),
        Action(1, BACKWARD, 1): Interval(5.5, 7.5),
        Action(0, BACKWARD, 0): Interval(5, 7),
        Action(0, BACKWARD, 1): Interval(8, 10),
    }


def test_a_link_carries_one_message_at_a_time() -> None:
    run = run_pipeline(one_f_one_b(2, 2), times(2, edge_s=10.0))
    # F0 leaves at 1 and arrives at 11; F1 is done at 2, leaves at 11 and arrives at 21.
    assert run[Action(1, FORWARD, 0)].start_s == 11
    assert run[Action(1, FORWARD, 1)].start_s == 21


def test_an_edge_sets_the_pace_of_1f1b() -> None:
    # Closed form's loop through both stages: (3 + 3 + 2 x 5) / 2 = 8 s for each further micro-batch.
    long, short = (simulate(one_f_one_b(2, m), [times(2, edge_s=5.0)]) for m in (102, 2))
    assert (long - short) / 100 == pytest.approx(8)


def test_never_faster_than_the_busiest_stage() -> None:
    slow = PipelineTimes((1.0, 4.0, 1.0), (2.0, 5.0, 2.0), (0.3, 0.1), (0.2, 0.4))
    assert simulate(one_f_one_b(3, 6), [slow]) >= 6 * 9


def test_reduction_hides_under_the_last_backward_but_for_the_last_bucket() -> None:
    # Four layers of 1 s each from 10 s on; each all-reduce takes 0.5 s: only the last one shows.
    assert reduce_end_s([Interval(10, 14)], [Bucket(1, 0.5)] * 4) == 14.5


def test_slow_reduction_queues() -> None:
    # The first bucket is made at 11 s; four times 3 s follow.
    assert reduce_end_s([Interval(10, 14)], [Bucket(1, 3)] * 4) == 23


def test_reduction_waits_for_the_slowest_replica() -> None:
    assert reduce_end_s([Interval(10, 14), Interval(12, 16)], [Bucket(1, 0.5)] * 4) == 16.5


def test_a_schedule_that_waits_for_itself_is_refused() -> None:
    backward_first = {0: (Action(0, BACKWARD, 0), Action(0, FORWARD, 0))}
    with pytest.raises(ValueError, match="stands still"):
        run_pipeline(backward_first, times(1))
