"""The simulated step: every pipeline rank runs its schedule's actions, messages queue on links, weights are gathered
and gradients reduced.

Each replica's pipeline runs alone, since groups already carry only their share of a NIC. Sends do not block the sender.
A link goes from one pipeline rank to its neighbour in one direction. It takes one message at a time; a message arrives
after the link's latency, while the next one leaves. A step begins when all ranks have updated their shards. Weights
are gathered during the first forward, and gradients are reduced during the last backward. The update waits for the
slowest rank, since the norm that clips gradients is over all ranks.

With thousands of micro-batches, fill and drain are simulated and the steady state between them is extrapolated. Once
one more round of pp micro-batches lengthens the step of every rank by the same seconds, the omitted rounds are assumed
to add as much each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from holmes_runtime.config.precedence import Precedence, follow, precedence_of
from holmes_runtime.config.schedule import ActionKind, Schedule, ScheduleName
from planner.schedule.buckets import BucketSeconds
from planner.schedule.shared_ports import SharedPorts, SharingRun
from planner.tolerances import ROUNDING

MAX_SIMULATED = 1024  # micro-batches; with more, this many are simulated first, then twice as many until steady


@dataclass(frozen=True)
class PipelineTimes:
    """Seconds per micro-batch of one replica.

    forward_s and backward_s are by stage. forward_edge_s[s] is the time a message from stage s to s+1 occupies the
    link, backward_edge_s[s] the same from s+1 to s. Both arrive latency_s[s] after they left; empty: 0.
    `weight_part` of a backward computes weight gradients, which a schedule may split off; the two halves together take
    `split_factor` times as long. No stage comes before the first, so its whole backward is its weight half.
    Edges on a port of `shared` take the given time if no other edge uses the port.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    forward_edge_s: tuple[float, ...]
    backward_edge_s: tuple[float, ...]
    weight_part: float = 0.5
    split_factor: float = 1.0
    latency_s: tuple[float, ...] = ()
    shared: SharedPorts | None = None

    def under_way_s(self) -> tuple[float, ...]:
        """Return the latency by edge."""
        return self.latency_s or (0.0,) * len(self.forward_edge_s)

    def halves_s(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return, by stage, the halves of a backward that a schedule splits: gradients of inputs, and of weights."""
        first_s, *later_s = self.backward_s
        inputs_s, weights_s = (
            tuple(backward_s * part * self.split_factor for backward_s in later_s)
            for part in (1 - self.weight_part, self.weight_part)
        )
        return (0.0, *inputs_s), (first_s, *weights_s)

    def work_s(self) -> list[float]:
        """Return the seconds of every kind of work, by kind and stage as `Waits` of precedence.py numbers them."""
        inputs_s, weights_s = self.halves_s()
        return [*self.forward_s, *self.forward_s, *self.backward_s, *inputs_s, *weights_s]

    def late_s(self) -> list[float]:
        """Return the latency of each work's input, by kind and stage as in `work_s`."""
        forward_s, backward_s = (0.0, *self.under_way_s()), (*self.under_way_s(), 0.0)
        return [*forward_s, *forward_s, *backward_s, *backward_s, *(0.0 for _ in backward_s)]


class Interval(NamedTuple):
    """Start and end of an action, seconds after the step began."""

    start_s: float
    end_s: float


class ScheduleOrder(NamedTuple):
    """A replica's schedule, as the arguments of `make_schedule`."""

    schedule: ScheduleName
    pp: int
    num_microbatches: int
    chunks: int = 1
    extra_in_flight: Sequence[int] = ()

    @property
    def precedence(self) -> Precedence:
        """The actions that each action waits for."""
        return precedence_of(*self)

    def without(self, rounds: int) -> ScheduleOrder:
        """Return the order with `rounds` fewer rounds of pp micro-batches."""
        return self._replace(num_microbatches=self.num_microbatches - rounds * self.pp)


@dataclass(frozen=True)
class ReplicaSchedule:
    """One replica: the order of its actions, and their seconds."""

    order: ScheduleOrder
    times: PipelineTimes

    def without(self, rounds: int) -> ReplicaSchedule:
        """Return the replica with `rounds` fewer rounds of pp micro-batches."""
        return replace(self, order=self.order.without(rounds))

    def without_sharing(self) -> ReplicaSchedule:
        """Return the replica with every edge as if it had its ports to itself."""
        return self if self.times.shared is None else replace(self, times=replace(self.times, shared=None))


@dataclass(frozen=True)
class Span:
    """One action of a timeline."""

    rank: int
    kind: ActionKind
    stage: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class ReplicaTimeline:
    """The end of each action of one replica and the time at which its message left, by number; see precedence.py.

    `late_s` is the latency of an action's input, by work as `Waits` numbers it. `steady_s` is added to the end of every
    last action for the part of the steady state that was left out.
    """

    precedence: Precedence
    ends_s: list[float]
    left_s: list[float]
    late_s: list[float]
    steady_s: float = 0.0

    def interval(self, number: int) -> Interval:
        """Return the interval of that action."""
        before, needed, work, *_ = self.precedence.waits[number - 1]
        return Interval(max(self.ends_s[before], self.left_s[needed] + self.late_s[work]), self.ends_s[number])

    def last_interval(self, stage: int) -> Interval:
        """Return the interval of the stage's last action."""
        start_s, stop_s = self.interval(self.precedence.last[stage])
        return Interval(start_s + self.steady_s, stop_s + self.steady_s)

    def rank_ends_s(self) -> list[float]:
        """Return, by pipeline rank, when its last action ended."""
        return [self.ends_s[numbers[-1]] + self.steady_s for numbers in self.precedence.by_rank]


Buckets = Sequence[Sequence[BucketSeconds]]
"""Gradient buckets by stage, in the order in which its backward computes them."""


def run_pipeline(precedence: Precedence, times: PipelineTimes, buckets: Buckets = ()) -> ReplicaTimeline:
    """Return the run of one replica: each action starts as soon as its rank is free and its input has arrived.

    `buckets`, if given, are gathered from the start of the step, and a stage's first forward waits for them.
    """
    work_s, edge_s = times.work_s(), [*times.forward_edge_s, *times.backward_edge_s, 0.0]
    late_s = times.late_s()
    least_end_s = gathered_s(len(precedence.by_rank), times, buckets)
    least_end_s += [0.0] * (len(work_s) - len(least_end_s))
    if times.shared is None:
        ends_s, left_s = follow(precedence, work_s, edge_s, late_s, least_end_s)
    else:
        ends_s, left_s = SharingRun(precedence, work_s, edge_s, late_s, least_end_s, times.shared).to_end()
    return ReplicaTimeline(precedence, ends_s, left_s, late_s)


def run_to_end(pipeline: ReplicaSchedule, buckets: Buckets = ()) -> ReplicaTimeline:
    """Return the run of one replica, without a part of its steady state if it has very many micro-batches."""
    order, times = pipeline.order, pipeline.times
    simulated = max(MAX_SIMULATED, 16 * (order.pp + sum(order.extra_in_flight)))
    while (rounds := (order.num_microbatches - simulated) // order.pp) > 1:
        longer, shorter = (run_pipeline(order.without(rounds + n).precedence, times, buckets) for n in (0, 1))
        grown_s = [more - less for more, less in zip(longer.rank_ends_s(), shorter.rank_ends_s(), strict=True)]
        if max(grown_s) - min(grown_s) <= max(longer.rank_ends_s()) * ROUNDING:
            return replace(longer, steady_s=rounds * max(grown_s))
        simulated *= 2
    return run_pipeline(order.precedence, times, buckets)


def gathered_s(pp: int, times: PipelineTimes, buckets: Buckets) -> list[float]:
    """Return, by stage, a lower bound on the end of its first forward, whose parts wait for their buckets.

    The first layers are gathered first, and a rank's stages one after another. A bucket's share of the forward is its
    share of the backward.
    """
    num_stages = len(times.forward_s)
    least_s = [0.0] * num_stages
    for rank in range(pp) if buckets else ():
        now_s = across_s = 0.0
        for stage in range(rank, num_stages, pp):
            row, left = buckets[stage], 1.0
            whole_s = sum([bucket.backward_s for bucket in row])
            end_s, forward_s = 0.0, times.forward_s[stage]
            for backward_s, _, gather_s, late_s, _, across_gather_s in reversed(row):
                across_s += across_gather_s
                now_s = (across_s if across_s > now_s else now_s) + gather_s
                made_s = now_s + late_s + left * forward_s
                end_s = made_s if made_s > end_s else end_s
                left -= backward_s / whole_s if whole_s else 1 / len(row)
            least_s[stage] = end_s
    return least_s


class NetworkFreeTimes(NamedTuple):
    """The times when the network inside clusters is free again, and when the one between them is, which is the end."""

    inside_s: float
    end_s: float


AT_ONCE = NetworkFreeTimes(0.0, 0.0)


def reduce_end_s(
    last_backwards: Sequence[Interval], buckets: Sequence[BucketSeconds], free: NetworkFreeTimes = AT_ONCE
) -> NetworkFreeTimes:
    """Return when a stage's gradients have been reduced over its replicas, whose last backwards are given.

    Buckets are in the order in which the backward computes them. Each starts when every replica has computed it, the
    previous bucket is reduced and the network is free (`free`). Within its interval, a replica's backward computes
    buckets at a constant pace. In two levels, a bucket crosses clusters once it has been reduced inside them and the
    previous one has crossed.
    """
    whole_s = sum(bucket.backward_s for bucket in buckets)
    made_s, (inside_s, end_s) = 0.0, free
    for bucket in buckets:
        made_s += bucket.backward_s
        part = made_s / whole_s if whole_s else 1.0
        ready_s = max(start_s + part * (stop_s - start_s) for start_s, stop_s in last_backwards)
        inside_s = max(inside_s, ready_s) + bucket.reduce_s
        end_s = max(end_s, inside_s) + bucket.across_reduce_s
    return NetworkFreeTimes(inside_s, max(end_s, max(interval.end_s for interval in last_backwards)))


def simulate(pipelines: Sequence[ReplicaSchedule], buckets: Buckets = ()) -> float:
    """Return the seconds until the last rank has its gradients. Without `buckets` nothing is gathered or reduced.

    Equal pipelines run once.
    """
    unlike = dict.fromkeys(pipelines) if len(pipelines) > 1 else pipelines
    return end_s([run_to_end(pipeline, buckets) for pipeline in unlike], buckets)


def end_s(runs: Sequence[ReplicaTimeline], buckets: Buckets = ()) -> float:
    """Return the seconds until the last rank of these replicas has its gradients."""
    ends_s = [end_s for run in runs for end_s in run.rank_ends_s()]
    if buckets:
        finals = [[run.last_interval(stage) for stage in range(len(buckets))] for run in runs]
        pp = len(runs[0].precedence.by_rank)
        ends_s += [_rank_reduce_end_s(range(rank, len(buckets), pp), finals, buckets) for rank in range(pp)]
    return max(ends_s)


def _rank_reduce_end_s(stages: Sequence[int], finals: Sequence[Sequence[Interval]], buckets: Buckets) -> float:
    """Return when a pipeline rank has reduced its stages' gradients, one stage after another as they are computed."""
    reduced, late_s = AT_ONCE, 0.0
    for stage in sorted(stages, key=lambda s: max(final[s].end_s for final in finals)):
        reduced = reduce_end_s([final[stage] for final in finals], buckets[stage], reduced)
        late_s = buckets[stage][-1].late_s
    return reduced.end_s + late_s


def spans_of(schedule: Schedule, run: ReplicaTimeline) -> tuple[Span, ...]:
    """Return every action of a replica of that schedule with its time, pipeline rank by pipeline rank."""
    return tuple(
        Span(rank, action.kind, action.stage, action.microbatch, *run.interval(number))
        for rank, actions in schedule.items()
        for action, number in zip(actions, run.precedence.by_rank[rank], strict=True)
    )
