"""The bound against the simulation it saves, and what skipping by it must not change."""

from __future__ import annotations

import random

import pytest

from holmes_runtime.config.schedule import ScheduleName
from planner.schedule.buckets import BucketSeconds
from planner.schedule.shared_ports import SharedPorts
from planner.schedule.simulate import PipelineTimes, ReplicaSchedule, ScheduleOrder, simulate
from planner.schedule.step_lower_bound import least_step_s
from tests.seeds import few_of

SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "eager", "interleaved", "zero-bubble")


def drawn_times(draw: random.Random, num_stages: int) -> PipelineTimes:
    """Stages of any seconds, and links from free to the slowest part of all."""
    scale = draw.choice((0.0, 0.1, 1.0, 5.0))
    forward_s, backward_s = (tuple(draw.random() * k for _ in range(num_stages)) for k in (1, 2))
    there_s, back_s = (tuple(draw.random() * scale for _ in range(num_stages - 1)) for _ in range(2))
    late_s = tuple(draw.random() * draw.choice((0.0, 0.1, 5.0)) for _ in range(num_stages - 1))
    shared = None
    if scale and num_stages > 2 and draw.random() < 0.5:
        middle = draw.randrange(1, num_stages - 1)  # sends stage `middle`'s forward and its backward through one port
        uses = ((middle, there_s[middle]), (num_stages - 2 + middle, back_s[middle - 1]))
        shared = SharedPorts((uses,), (1.0,) * (2 * num_stages - 2))
    return PipelineTimes(forward_s, backward_s, there_s, back_s, 0.4, 1.2, late_s, shared)


def drawn_buckets(draw: random.Random, num_stages: int) -> list[list[BucketSeconds]]:
    """One to four buckets a stage, whose reductions and gathers take up to more than the pipeline; or none."""
    if draw.random() < 0.3:
        return []
    reduce, gather = draw.choice((0, 1, 5)), draw.choice((0, 1, 3))
    return [
        [
            BucketSeconds(
                draw.random(),
                draw.random() * reduce,
                *(draw.random() * most for most in (gather, gather, reduce, gather)),
            )
            for _ in range(draw.randint(1, 4))
        ]
        for _ in range(num_stages)
    ]


@pytest.mark.parametrize("name", few_of(3, SCHEDULES))
def test_no_simulation_comes_below_the_bound_and_most_come_near(name: ScheduleName) -> None:
    draw, shares = random.Random(name), []
    for _ in range(150):
        pp, chunks = draw.randint(1, 6), draw.choice((1, 2, 3)) if name == "interleaved" else 1
        m = pp * draw.randint(1, 5) if name == "interleaved" else draw.randint(1, 30)
        extra = tuple(draw.randint(0, 3) for _ in range(pp - 1)) if name == "eager" else ()
        times, buckets = drawn_times(draw, pp * chunks), drawn_buckets(draw, pp * chunks)
        pipeline = ReplicaSchedule(ScheduleOrder(name, pp, m, chunks, extra), times)
        step_s, least_s = simulate([pipeline], buckets), least_step_s(pipeline, buckets)
        assert least_s <= step_s
        shares.append(least_s / step_s)
    assert sum(shares) / len(shares) > 0.75


def test_equal_stages_and_free_links_reach_the_bound() -> None:
    # Eight micro-batches of 3 s on each of four ranks; the last one starts after three forwards and drains in three
    # backwards.
    times = PipelineTimes((1.0,) * 4, (2.0,) * 4, (0.0,) * 3, (0.0,) * 3)
    assert least_step_s(ReplicaSchedule(ScheduleOrder("1f1b", 4, 8), times)) == pytest.approx((8 + 3) * 3)
