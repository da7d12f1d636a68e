"""The step, simulated: every pipeline rank runs the schedule's own actions, messages queue on links, weights are
gathered and gradients reduced.

Each replica's pipeline runs alone, since groups already carry only their share of a NIC. Sends do not hold up the
sender; a link, from one pipeline rank to its neighbour in one direction, carries one message at a time. A step begins
when all ranks have updated their shards: weights are gathered under the first forward, gradients reduced under the
last backward, and the update waits for the slowest rank, since the norm that clips gradients is everybody's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from holmes_runtime.schedule import Action, ActionKind, Schedule

FORWARD, BACKWARD = ActionKind.FORWARD, ActionKind.BACKWARD
BACKWARD_INPUT, BACKWARD_WEIGHT = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


@dataclass(frozen=True)
class PipelineTimes:
    """Seconds per micro-batch of one replica.

    forward_s and backward_s are by stage. forward_edge_s[s] is one message from stage s to s+1, backward_edge_s[s] one
    from s+1 to s. `weight_part` of a backward makes weight gradients, which a schedule may split off; its two halves
    then take `split_factor` times as long together.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    forward_edge_s: tuple[float, ...]
    backward_edge_s: tuple[float, ...]
    weight_part: float = 0.5
    split_factor: float = 1.0

    def without_edges(self) -> PipelineTimes:
        """The same pipeline with links that take no time."""
        free = (0.0,) * len(self.forward_edge_s)
        return replace(self, forward_edge_s=free, backward_edge_s=free)

    def compute_s(self, kind: ActionKind, stage: int) -> float:
        """Seconds an action of `kind` computes."""
        if kind is FORWARD:
            return self.forward_s[stage]
        if kind is BACKWARD:
            return self.backward_s[stage]
        part = 1 - self.weight_part if kind is BACKWARD_INPUT else self.weight_part
        return self.backward_s[stage] * part * self.split_factor


@dataclass(frozen=True)
class Bucket:
    """Parameters that travel together: seconds of the backward that make their gradients, of their reduce-scatter and
    of their all-gather."""

    backward_s: float
    reduce_s: float
    gather_s: float = 0.0


class Interval(NamedTuple):
    """Start and end of an action, seconds after the step began."""

    start_s: float
    end_s: float


@dataclass(frozen=True)
class Pipeline:
    """One replica: its actions and their seconds."""

    schedule: Schedule
    times: PipelineTimes


@dataclass(frozen=True)
class Span:
    """One action of a timeline."""

    rank: int
    kind: ActionKind
    stage: int
    microbatch: int
    start_s: float
    end_s: float


Run = dict[int, list[Interval]]
"""By pipeline rank, when each of its actions ran."""
Buckets = Sequence[Sequence[Bucket]]
"""By stage, in the order its backward makes them."""


def run_pipeline(schedule: Schedule, times: PipelineTimes, buckets: Buckets = ()) -> Run:
    """When each action of one replica runs: as soon as its rank is free and its input has arrived.

    `buckets`, if given, are gathered from the start on, and a stage's first forward waits for them.
    Raises ValueError if the schedule waits for itself.
    """
    pp, num_stages = len(schedule), len(times.forward_s)
    halves = {kind: [times.compute_s(kind, s) for s in range(num_stages)] for kind in (BACKWARD_INPUT, BACKWARD_WEIGHT)}
    gathered = _gathered(schedule, buckets)
    arrived: dict[tuple[int, int], float] = {}  # (2 stage + is forward, micro-batch): when its input is there
    awaited: dict[tuple[int, int], int] = {}  # the rank that stands still for it
    link_free_s = [0.0] * (2 * pp)
    rank_free_s = dict.fromkeys(schedule, 0.0)
    done: Run = {rank: [] for rank in schedule}
    runnable = list(reversed(schedule))
    while runnable:
        rank = runnable.pop()
        actions, intervals, now_s = schedule[rank], done[rank], rank_free_s[rank]
        for action in actions[len(intervals) :]:
            stage, kind, microbatch = action.stage, action.kind, action.microbatch
            forward = kind is FORWARD
            start_s = now_s
            if kind is not BACKWARD_WEIGHT and (stage > 0 or not forward):
                ready_s = arrived.get((2 * stage + forward, microbatch))
                if ready_s is None:
                    awaited[2 * stage + forward, microbatch] = rank
                    break
                if ready_s > now_s:
                    start_s = ready_s
            if forward:
                took_s = times.forward_s[stage]
            else:
                took_s = times.backward_s[stage] if kind is BACKWARD else halves[kind][stage]
            now_s = start_s + took_s
            if forward and stage in gathered:
                now_s = _first_forward_end_s(start_s, took_s, buckets[stage], gathered.pop(stage))
            intervals.append(Interval(start_s, now_s))
            if kind is BACKWARD_WEIGHT or (stage == 0 and not forward):
                continue
            if not forward:
                receiver, edge_s = (2 * stage - 2, microbatch), times.backward_edge_s[stage - 1]
            elif stage < num_stages - 1:
                receiver, edge_s = (2 * stage + 3, microbatch), times.forward_edge_s[stage]
            else:  # the last stage's forward makes its own backward's input
                receiver, edge_s = (2 * stage, microbatch), 0.0
            link = 2 * (stage % pp) + forward
            there_s = max(now_s, link_free_s[link]) + edge_s
            link_free_s[link] = arrived[receiver] = there_s
            if receiver in awaited:
                runnable.append(awaited.pop(receiver))
        rank_free_s[rank] = now_s
    ran = sum(map(len, done.values()))
    if ran < sum(map(len, schedule.values())):
        raise ValueError(f"the schedule stands still after {ran} actions")
    return done


def _gathered(schedule: Schedule, buckets: Buckets) -> dict[int, list[float]]:
    """By stage, when each of its buckets is gathered, the first layers' first; a rank's stages one after another."""
    ends: dict[int, list[float]] = {}
    for actions in schedule.values() if buckets else ():
        now_s = 0.0
        for stage in sorted({action.stage for action in actions}):
            ends[stage] = []
            for bucket in reversed(buckets[stage]):
                now_s += bucket.gather_s
                ends[stage].append(now_s)
    return ends


def _first_forward_end_s(start_s: float, forward_s: float, buckets: Sequence[Bucket], gathered: list[float]) -> float:
    """When a stage's first forward ends, each part of it waiting for its bucket, at the pace of the backward."""
    whole_s = sum(bucket.backward_s for bucket in buckets)
    now_s = start_s
    for bucket, there_s in zip(reversed(buckets), gathered, strict=True):
        part = bucket.backward_s / whole_s if whole_s else 1 / len(buckets)
        now_s = max(now_s, there_s) + part * forward_s
    return max(now_s, start_s + forward_s)


def reduce_end_s(last_backwards: Sequence[Interval], buckets: Sequence[Bucket], free_s: float = 0.0) -> float:
    """When a stage's gradients are reduced over its replicas, whose last backwards are given.

    Buckets are in the order the backward makes them. Each starts when every replica has made it, the one before is
    through and the network is free, at `free_s`. A replica's backward makes buckets at the pace of its own interval.
    """
    whole_s = sum(bucket.backward_s for bucket in buckets)
    made_s, end_s = 0.0, free_s
    for bucket in buckets:
        made_s += bucket.backward_s
        part = made_s / whole_s if whole_s else 1.0
        ready_s = max(interval.start_s + part * (interval.end_s - interval.start_s) for interval in last_backwards)
        end_s = max(end_s, ready_s) + bucket.reduce_s
    return max(end_s, max(interval.end_s for interval in last_backwards))


def simulate(pipelines: Sequence[Pipeline], buckets: Buckets = ()) -> float:
    """Seconds until the last rank has its gradients. Without `buckets` nothing is gathered or reduced."""
    runs: dict[tuple[int, PipelineTimes], Run] = {}
    for pipeline in pipelines:
        key = (id(pipeline.schedule), pipeline.times)
        if key not in runs:
            runs[key] = run_pipeline(pipeline.schedule, pipeline.times, buckets)
    ends_s = [intervals[-1].end_s for run in runs.values() for intervals in run.values()]
    if buckets:
        schedules = {id(pipeline.schedule): pipeline.schedule for pipeline in pipelines}
        finals = [_last_backwards(schedules[key[0]], run) for key, run in runs.items()]
        ends_s += [_rank_reduce_end_s(actions, finals, buckets) for actions in pipelines[0].schedule.values()]
    return max(ends_s)


def _rank_reduce_end_s(actions: Sequence[Action], finals: Sequence[Mapping[int, Interval]], buckets: Buckets) -> float:
    """When a pipeline rank has reduced its stages' gradients, one stage after another as they are made."""
    end_s = 0.0
    stages = {action.stage for action in actions}
    for stage in sorted(stages, key=lambda s: max(final[s].end_s for final in finals)):
        end_s = reduce_end_s([final[stage] for final in finals], buckets[stage], end_s)
    return end_s


def _last_backwards(schedule: Schedule, run: Run) -> dict[int, Interval]:
    """By stage, its last action, which makes its last gradients."""
    return {
        action.stage: interval
        for rank, actions in schedule.items()
        for action, interval in zip(actions, run[rank], strict=True)
    }


def timeline(pipeline: Pipeline, buckets: Buckets = ()) -> tuple[Span, ...]:
    """Every action of one replica with its time, pipeline rank by pipeline rank."""
    run = run_pipeline(pipeline.schedule, pipeline.times, buckets)
    return tuple(
        Span(rank, action.kind, action.stage, action.microbatch, interval.start_s, interval.end_s)
        for rank, actions in pipeline.schedule.items()
        for action, interval in zip(actions, run[rank], strict=True)
    )
