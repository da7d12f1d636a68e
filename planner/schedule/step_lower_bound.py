"""Lower bounds on the simulation of a schedule, in seconds, computed without running its actions.

Most modes of a placement lose by these alone, so only the few that may win are simulated. A bound follows one pipeline
rank. It begins when the first micro-batch arrives, does all its work, and then the ranks before it still have a
backward to run. No link, and no shared port, is faster than its messages one by one. Ranks also wait for one another in
loops: from a backward to the next forward of the same rank, with it to a later rank, and back with that rank's next
backward.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.schedule.buckets import BucketSeconds
from planner.schedule.simulate import Buckets, PipelineTimes, ReplicaSchedule, ScheduleOrder, gathered_s
from planner.tolerances import ROUNDING

WIDEST = 4  # ranks in a loop: wider ones wait longer only if links are very slow, and are slow to compute


def least_step_s(pipeline: ReplicaSchedule, buckets: Buckets = ()) -> float:
    """Return a lower bound on the seconds of `simulate` for that replica."""
    order, times = pipeline.order, pipeline.times
    pp, m, num_stages = order.pp, order.num_microbatches, len(times.forward_s)
    forward_s, late_s = times.forward_s, times.under_way_s()
    busy_s = [(*edge_s, 0.0) for edge_s in (times.forward_edge_s, times.backward_edge_s)]
    there_s, back_s = ([edge + late for edge, late in zip(each, (*late_s, 0.0), strict=True)] for each in busy_s)
    backward_s, weights_s = times.backward_s, (0.0,) * num_stages  # the part the previous rank waits for, and the rest
    if order.schedule == "zero-bubble":
        backward_s, weights_s = times.halves_s()
    begun_s = _first_forwards_s(pp, times, gathered_s(pp, times, buckets))
    kept = [_most_kept(order, rank) for rank in range(pp)] if num_stages == pp else []
    least_s = done_s = 0.0
    for rank in reversed(range(pp)):
        stages = range(rank, num_stages, pp)
        compute_s = sum([forward_s[s] + backward_s[s] for s in stages])
        links_s = max([sum(edge_s[rank::pp]) for edge_s in busy_s])
        waited_s = done_s + back_s[rank] + backward_s[rank] if rank < pp - 1 else 0.0
        done_s = max(waited_s, begun_s[rank] + m * max(compute_s, links_s))
        if num_stages == pp:
            round_s = sum(map(sum, (forward_s[rank:], there_s[rank:], back_s[rank:], backward_s[rank:])))
            loops_s = _loops_s(m, kept[rank:], rank, forward_s, there_s, back_s, backward_s)
            done_s = max(done_s, begun_s[rank] + round_s + max(loops_s, (m - 1) * links_s))
        all_s = begun_s[rank] + m * (compute_s + sum(weights_s[rank::pp]))
        last_s = weights_s if order.schedule == "zero-bubble" else backward_s
        tail_s = min([_reduce_tail_s(buckets[s], last_s[s]) for s in stages]) if buckets else 0.0
        least_s = max(least_s, max(all_s, done_s + weights_s[rank]) + tail_s)
    return max(least_s, m * _busiest_port_s(times)) * (1 - ROUNDING)


def _busiest_port_s(times: PipelineTimes) -> float:
    """Return the seconds for which the messages of one micro-batch occupy the busiest shared port."""
    ports = times.shared.ports if times.shared is not None else ()
    return max((sum(use_s for _, use_s in port) for port in ports), default=0.0)


def _loops_s(
    m: int,
    kept: Sequence[int],
    rank: int,
    forward_s: Sequence[float],
    there_s: Sequence[float],
    back_s: Sequence[float],
    backward_s: Sequence[float],
) -> float:
    """Return a lower bound on the seconds between the first and the last backward of a rank with one stage.

    After backward j it runs forward j + k; a later rank follows that with backward j + k - k' + 1, where k' is its own
    k. `kept` has k of the rank and of all later ones; there are `m` micro-batches.
    """
    longest_s = loop_s = 0.0
    for other, later in enumerate(kept[:WIDEST], rank):
        loop_s += forward_s[other] + backward_s[other]
        ahead = kept[0] - later + 1
        loops = max(0, (m - 1 - kept[0]) // ahead + 1)
        longest_s = max(longest_s, loops * loop_s + (m - 1 - loops * ahead) * backward_s[rank])
        loop_s += there_s[other] + back_s[other]
    return longest_s


def _most_kept(order: ScheduleOrder, rank: int) -> int:
    """Return the most forwards by which a rank with one stage may be ahead of its backwards."""
    if order.schedule == "gpipe":
        return order.num_microbatches
    return min(order.num_microbatches, order.pp - rank + sum(order.extra_in_flight[rank:]))


def _first_forwards_s(pp: int, times: PipelineTimes, gathered: Sequence[float]) -> list[float]:
    """Return, by rank, the earliest time at which its first forward begins, if it then runs without a pause."""
    found, there_s, late_s = [], 0.0, times.under_way_s()
    for rank in range(pp):
        forward_s = times.forward_s[rank]
        found.append(max(there_s, gathered[rank] - forward_s))
        there_s = found[-1] + forward_s + (times.forward_edge_s[rank] + late_s[rank] if rank < pp - 1 else 0.0)
    return found


def _reduce_tail_s(buckets: Sequence[BucketSeconds], last_s: float) -> float:
    """Return a lower bound on the seconds of reducing after a stage's last backward of `last_s`: of the last bucket, or
    of all once the first is computed."""
    whole_s = inside_s = across_s = 0.0
    for backward_s, reduce_s, _, _, across_reduce_s, _ in buckets:
        whole_s, inside_s, across_s = whole_s + backward_s, inside_s + reduce_s, across_s + across_reduce_s
    last, hidden_s = buckets[-1], last_s * (1 - buckets[0].backward_s / whole_s) if whole_s else 0.0
    return max(last.reduce_s + last.across_reduce_s, max(inside_s, across_s) - hidden_s) + last.late_s
