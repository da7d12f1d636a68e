"""The simulation against timelines worked by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from holmes_runtime.config.precedence import find_precedence, follow, precedence_of
from holmes_runtime.config.schedule import Action, ActionKind, Schedule, ScheduleName, make_schedule, one_f_one_b
from planner.schedule.buckets import BucketSeconds
from planner.schedule.simulate import (
    Interval,
    PipelineTimes,
    ReplicaSchedule,
    ScheduleOrder,
    Span,
    end_s,
    reduce_end_s,
    run_pipeline,
    run_to_end,
    simulate,
    spans_of,
)
from tests.seeds import few_of, seeds

FORWARD, BACKWARD = ActionKind.FORWARD, ActionKind.BACKWARD


def times(stages: int, edge_s: float = 0.0) -> PipelineTimes:
    """Equal stages: forward 1 s, backward 2 s."""
    edges = (edge_s,) * (stages - 1)
    return PipelineTimes((1.0,) * stages, (2.0,) * stages, edges, edges)


def timeline(
    schedule: Schedule, seconds: PipelineTimes, buckets: Sequence[Sequence[BucketSeconds]] = ()
) -> tuple[Span, ...]:
    """Every action of one replica."""
    return spans_of(schedule, run_pipeline(find_precedence(schedule), seconds, buckets))


def step_s(schedule: Schedule, seconds: PipelineTimes) -> float:
    """Seconds of one replica's step without gradients."""
    return end_s([run_pipeline(find_precedence(schedule), seconds)])


def test_one_stage_takes_the_sum() -> None:
    assert step_s(one_f_one_b(1, 4), times(1)) == 12


def test_without_edges_1f1b_takes_m_plus_p_minus_1() -> None:
    assert step_s(one_f_one_b(4, 8), times(4)) == (8 + 4 - 1) * 3


def test_gpipe_takes_as_long_as_1f1b() -> None:
    assert step_s(make_schedule("gpipe", 4, 8), times(4)) == (8 + 4 - 1) * 3


def test_interleaving_divides_the_bubble_by_the_chunks() -> None:
    # Eight stages of half a rank's work each: (p - 1) / 2 of bubble, on 8 x 3 s of work.
    half = PipelineTimes((0.5,) * 8, (1.0,) * 8, (0.0,) * 7, (0.0,) * 7)
    assert step_s(make_schedule("interleaved", 4, 8, 2), half) == 8 * 3 + 3 * 3 / 2


def test_zero_bubble_waits_for_input_gradients_alone() -> None:
    # Two stages, two micro-batches, halves of 1 s. Rank 1: F0 1-2, input 2-3, weight 3-4 waits for lag 1: F1 3-4 ...
    # Each rank computes 6 s; rank 1 starts at 1 s and never waits.
    assert step_s(make_schedule("zero-bubble", 2, 2), times(2)) == 7
    assert step_s(one_f_one_b(2, 2), times(2)) == 9


def test_the_first_stage_runs_its_backwards_whole_as_nobody_waits_for_their_input_half() -> None:
    # Halves take twice as long, 2 s each. Rank 1: F0 1-2, input 2-4, F1 4-5, input 5-7, weights 7-9 and 9-11. Rank 0:
    # F0, F1, and at 4 and 7 the gradients are there: 4-6 and 7-9. In halves it would have been 4-8 and 8-12.
    schedule = make_schedule("zero-bubble", 2, 2)
    split = replace(times(2), split_factor=2.0)
    assert step_s(schedule, split) == 11
    spans = [span for span in timeline(schedule, split) if span.rank == 0 and span.kind is ActionKind.BACKWARD_WEIGHT]
    assert [(span.start_s, span.end_s) for span in spans] == [(4, 6), (7, 9)]


def test_two_stage_timeline_by_hand() -> None:
    # Stage 0: F0 0-1, F1 1-2. Stage 1: F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5, B1 5.5-7.5. Stage 0: B0 5-7, B1 8-10.
    assert timeline(one_f_one_b(2, 2), times(2, edge_s=0.5)) == (
        Span(0, FORWARD, 0, 0, 0, 1),
        Span(0, FORWARD, 0, 1, 1, 2),
        Span(0, BACKWARD, 0, 0, 5, 7),
        Span(0, BACKWARD, 0, 1, 8, 10),
        Span(1, FORWARD, 1, 0, 1.5, 2.5),
        Span(1, BACKWARD, 1, 0, 2.5, 4.5),
        Span(1, FORWARD, 1, 1, 4.5, 5.5),
        Span(1, BACKWARD, 1, 1, 5.5, 7.5),
    )


def test_a_link_carries_one_message_at_a_time() -> None:
    spans = timeline(one_f_one_b(2, 2), times(2, edge_s=10.0))
    # F0 leaves at 1 and arrives at 11; F1 is done at 2, leaves at 11 and arrives at 21.
    arrivals = {span.microbatch: span.start_s for span in spans if span.stage == 1 and span.kind is FORWARD}
    assert arrivals == {0: 11, 1: 21}


def test_stages_of_two_ranks_share_the_link_between_them() -> None:
    # Stages 0 and 2 are on rank 0: what either sends to rank 1 queues on one link.
    slow = PipelineTimes((1.0,) * 4, (1.0,) * 4, (5.0, 0.0, 5.0), (0.0,) * 3)
    free = PipelineTimes((1.0,) * 4, (1.0,) * 4, (5.0, 0.0, 0.0), (0.0,) * 3)
    schedule = make_schedule("interleaved", 2, 2, 2)
    assert step_s(schedule, slow) > step_s(schedule, free) >= 2 * 5


def test_what_the_last_stage_hands_to_itself_waits_for_no_link() -> None:
    # Ranks 0 and 1 hold stages 0, 2 and 1, 3. While F1 of micro-batch 1 is under way to rank 0 for 9 s, F3 and B3 of
    # micro-batch 0 run one right after the other.
    slow = PipelineTimes((1.0,) * 4, (1.0,) * 4, (0.0, 9.0, 0.0), (0.0,) * 3)
    spans = {
        (span.kind, span.stage, span.microbatch): span for span in timeline(make_schedule("interleaved", 2, 2, 2), slow)
    }
    assert spans[BACKWARD, 3, 0].start_s == spans[FORWARD, 3, 0].end_s


def test_an_edge_sets_the_pace_of_1f1b() -> None:
    # Closed form's loop through both stages: (3 + 3 + 2 x 5) / 2 = 8 s for each further micro-batch.
    long, short = (step_s(one_f_one_b(2, m), times(2, edge_s=5.0)) for m in (102, 2))
    assert (long - short) / 100 == pytest.approx(8)


def test_one_more_in_flight_hides_a_slow_edge() -> None:
    eager = make_schedule("eager", 2, 20, 1, (1,))
    assert step_s(eager, times(2, edge_s=1.0)) < step_s(one_f_one_b(2, 20), times(2, edge_s=1.0))


def test_a_message_leaves_while_the_one_before_is_under_way() -> None:
    # 100 ms under way, 1 ms of link: with enough in flight the pace is that of the stages.
    late = replace(times(2, edge_s=0.001), latency_s=(0.1,))
    eager = make_schedule("eager", 2, 200, 1, (80,))
    added_s = step_s(eager, late) - step_s(eager, times(2, edge_s=0.001))
    assert added_s == pytest.approx(2 * 0.1, rel=1e-6)


def test_latency_is_waited_for_once_a_round_trip_of_1f1b() -> None:
    # The loop through both stages, now with 2 x 4 s under way: (3 + 3 + 2 x 1 + 2 x 4) / 2 = 8 s a micro-batch.
    late = replace(times(2, edge_s=1.0), latency_s=(4.0,))
    long, short = (step_s(one_f_one_b(2, m), late) for m in (102, 2))
    assert (long - short) / 100 == pytest.approx(8)


@pytest.mark.parametrize("name", ["1f1b", "eager", "interleaved", "zero-bubble"])
@pytest.mark.parametrize("seed", seeds(20, few=5))
def test_more_latency_never_shortens_a_step(name: ScheduleName, seed: int) -> None:
    draw = random.Random(seed)
    extra = (draw.randint(0, 3),) * 2 if name == "eager" else ()
    schedule = make_schedule(name, 3, 6, 2 if name == "interleaved" else 1, extra)
    stages = 6 if name == "interleaved" else 3
    edges = tuple(draw.uniform(0, 2) for _ in range(stages - 1))
    near = PipelineTimes(
        tuple(draw.uniform(0.5, 2) for _ in range(stages)), (2.0,) * stages, edges, edges,
        latency_s=tuple(draw.uniform(0, 3) for _ in edges),
    )  # fmt: skip
    far = replace(near, latency_s=tuple(late + draw.uniform(0, 3) for late in near.latency_s))
    assert step_s(schedule, far) >= step_s(schedule, near)


@pytest.mark.parametrize("name", ["1f1b", "eager", "interleaved", "zero-bubble"])
def test_never_faster_than_the_busiest_rank(name: ScheduleName) -> None:
    chunks = 2 if name == "interleaved" else 1
    slow = PipelineTimes((1.0, 4.0, 1.0) * chunks, (2.0, 5.0, 2.0) * chunks, (0.3,) * 5, (0.2,) * 5)
    assert step_s(make_schedule(name, 3, 6, chunks), slow) >= 6 * 9 * chunks


def test_replicas_may_run_different_numbers_of_microbatches() -> None:
    pipelines = [ReplicaSchedule(ScheduleOrder("1f1b", 2, m), times(2)) for m in (3, 5)]
    assert simulate(pipelines) == (5 + 2 - 1) * 3


def test_reduction_hides_under_the_last_backward_but_for_the_last_bucket() -> None:
    # Four layers of 1 s each from 10 s on; each reduction takes 0.5 s: only the last one shows.
    assert reduce_end_s([Interval(10, 14)], [BucketSeconds(1, 0.5)] * 4).end_s == 14.5


def test_slow_reduction_queues() -> None:
    # The first bucket is made at 11 s; four times 3 s follow.
    assert reduce_end_s([Interval(10, 14)], [BucketSeconds(1, 3)] * 4).end_s == 23


def test_reduction_waits_for_the_slowest_replica() -> None:
    assert reduce_end_s([Interval(10, 14), Interval(12, 16)], [BucketSeconds(1, 0.5)] * 4).end_s == 16.5


def test_reductions_of_a_rank_s_stages_queue() -> None:
    # One rank with two chunks, backwards of 2 s one after the other; each reduction takes 5 s after its backward.
    schedule = {0: tuple(Action(s, kind, 0) for s, kind in ((0, FORWARD), (1, FORWARD), (1, BACKWARD), (0, BACKWARD)))}
    buckets = [[BucketSeconds(2, 5)], [BucketSeconds(2, 5)]]
    assert end_s([run_pipeline(find_precedence(schedule), times(2), buckets)], buckets) == 2 + 2 + 5 + 5


def test_in_two_levels_a_bucket_goes_across_while_the_next_one_is_inside() -> None:
    # Made at 11, 12, 13 and 14 s; 0.5 s inside, then 2 s across, one after another: 11.5 + 4 x 2.
    buckets = [BucketSeconds(1, 0.5, across_reduce_s=2.0)] * 4
    assert reduce_end_s([Interval(10, 14)], buckets) == (14.5, 19.5)


def test_in_two_levels_weights_come_across_before_they_are_gathered_inside() -> None:
    # Across at 1, 2, 3 and 4 s, inside 0.1 s later; the last layer of 0.25 s runs after that.
    layers = [BucketSeconds(0.5, 0.0, 0.1, across_gather_s=1.0)] * 4
    first, *_ = timeline(one_f_one_b(1, 2), times(1), [layers])
    assert first.end_s == pytest.approx(4.35)


def test_weights_are_gathered_under_the_first_forward() -> None:
    # Four layers of 0.25 s; gathers of 0.2 s each, first layers first: the forward waits for the first alone.
    layers = [BucketSeconds(0.5, 0.0, 0.2)] * 4
    first, *_ = timeline(one_f_one_b(1, 2), times(1), [layers])
    assert first.end_s == pytest.approx(1.2)


def test_slow_gathers_hold_up_the_first_forward_of_each_stage_once() -> None:
    layers = [BucketSeconds(0.5, 0.0, 1.0)] * 4
    first, second, *_ = timeline(one_f_one_b(2, 2), times(2), [layers, layers])
    # The last layer's weights are there at 4 s.
    assert (first.end_s, second.end_s) == (4.25, 5.25)


def test_a_schedule_that_waits_for_itself_is_refused() -> None:
    backward_first: Schedule = {0: (Action(0, BACKWARD, 0), Action(0, FORWARD, 0))}
    with pytest.raises(ValueError, match="waits for itself"):
        find_precedence(backward_first)


def test_two_ranks_with_chunks_send_activations_and_gradients_over_one_link() -> None:
    """What rank 1 sends to rank 0, forward of its first chunk and backward of both, takes turns."""
    compute, busy = (0.01,) * 4, (1.0,) * 3
    times = PipelineTimes(compute, compute, busy, busy, latency_s=(0.0,) * 3)
    step_s = simulate([ReplicaSchedule(ScheduleOrder("interleaved", 2, 4, 2), times)])
    assert step_s > 3 * 4  # of rank 0's and of rank 1's messages each, three for every micro-batch


@pytest.mark.parametrize("name", few_of(2, ["1f1b", "eager", "interleaved", "zero-bubble"]))
def test_of_thousands_of_micro_batches_the_steady_state_is_counted(name: ScheduleName) -> None:
    draw = random.Random(name)
    chunks = 2 if name == "interleaved" else 1
    order = ScheduleOrder(name, 4, 3200, chunks, (0, 2, 1) if name == "eager" else ())
    forward_s, backward_s, there_s, back_s, late_s = (
        tuple(draw.random() for _ in range(4 * chunks - is_edge)) for is_edge in (0, 0, 1, 1, 1)
    )
    pipeline = ReplicaSchedule(order, PipelineTimes(forward_s, backward_s, there_s, back_s, 0.5, 1.1, late_s))
    buckets = [[BucketSeconds(1.0, draw.random() * 9, draw.random())] for _ in range(4 * chunks)]
    whole = end_s([run_pipeline(order.precedence, pipeline.times, buckets)], buckets)
    assert run_to_end(pipeline, buckets).steady_s > 0
    assert simulate([pipeline], buckets) == pytest.approx(whole, rel=1e-9)


def test_precedence_without_actions_is_that_of_the_actions() -> None:
    draw = random.Random(3)
    for _ in range(60):
        pp, count = draw.randint(1, 5), draw.randint(1, 9)
        extra = tuple(draw.randint(0, 3) for _ in range(pp - 1))
        found, expected = (
            precedence_of("eager", pp, count, 1, extra),
            find_precedence(make_schedule("eager", pp, count, 1, extra)),
        )
        seconds = [[draw.random() for _ in range(number)] for number in (5 * pp, 2 * pp - 1, 5 * pp, 5 * pp)]
        runs = [(each, follow(each, *seconds)) for each in (found, expected)]
        ends, left = (
            [[[times[at][number] for number in numbers] for numbers in each.by_rank] for each, times in runs]
            for at in (0, 1)
        )
        assert ends[0] == ends[1]
        assert left[0] == left[1]
        assert [runs[0][1][0][number] for number in found.last] == [runs[1][1][0][number] for number in expected.last]
