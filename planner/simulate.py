"""The step, simulated: every stage runs the schedule's own actions, messages queue on links, gradients are reduced.

Each replica's pipeline runs alone, since groups already carry only their share of a NIC. Sends do not hold up the
sender; a link, one edge in one direction, carries one message at a time. What travels inside a host takes no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holmes_runtime.schedule import Action, ActionKind

Schedule = Mapping[int, tuple[Action, ...]]


@dataclass(frozen=True)
class PipelineTimes:
    """Seconds per micro-batch of one replica.

    forward_s and backward_s are by stage. forward_edge_s[s] is one message from stage s to s+1, backward_edge_s[s] one
    from s+1 to s.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    forward_edge_s: tuple[float, ...]
    backward_edge_s: tuple[float, ...]

    def without_edges(self) -> PipelineTimes:
        """The same pipeline with links that take no time."""
        free = (0.0,) * len(self.forward_edge_s)
        return PipelineTimes(self.forward_s, self.backward_s, free, free)

    def compute_s(self, action: Action) -> float:
        """Seconds the action computes."""
        return (self.forward_s if action.kind is ActionKind.FORWARD else self.backward_s)[action.stage]


@dataclass(frozen=True)
class Interval:
    """Start and end of an action, seconds after the step began."""

    start_s: float
    end_s: float


@dataclass(frozen=True)
class Bucket:
    """Gradients reduced together: seconds of the last backward that make them, and seconds of their all-reduce."""

    backward_s: float
    all_reduce_s: float


def run_pipeline(schedule: Schedule, times: PipelineTimes) -> dict[Action, Interval]:
    """When each action of one replica runs: as soon as its stage is free and its input has arrived.

    Raises ValueError if the schedule waits for itself.
    """
    done: dict[Action, Interval] = {}
    arrived_s: dict[Action, float] = {}
    link_free_s: dict[tuple[int, ActionKind], float] = {}
    stage_free_s = dict.fromkeys(schedule, 0.0)
    waiting = {stage: list(reversed(actions)) for stage, actions in schedule.items()}
    last = len(schedule) - 1
    while any(waiting.values()):
        before = len(done)
        for stage, actions in waiting.items():
            while actions and (actions[-1] in arrived_s or _starts_here(actions[-1], last, done)):
                action = actions.pop()
                start_s = max(stage_free_s[stage], arrived_s.get(action, 0.0))
                end_s = start_s + times.compute_s(action)
                done[action] = Interval(start_s, end_s)
                stage_free_s[stage] = end_s
                receiver, seconds = _message(action, last, times)
                if receiver is not None:
                    link = (stage, action.kind)
                    link_free_s[link] = max(end_s, link_free_s.get(link, 0.0)) + seconds
                    arrived_s[receiver] = link_free_s[link]
        if len(done) == before:
            raise ValueError(f"the schedule stands still after {before} actions")
    return done


def _starts_here(action: Action, last: int, done: Mapping[Action, Interval]) -> bool:
    """Whether the action's input is made on its own stage: tokens, or the loss after the last stage's forward."""
    if action.kind is ActionKind.FORWARD:
        return action.stage == 0
    return action.stage == last and Action(last, ActionKind.FORWARD, action.microbatch) in done


def _message(action: Action, last: int, times: PipelineTimes) -> tuple[Action | None, float]:
    """The action that waits for this one's result on another stage, and seconds on the link; None at the ends."""
    stage, forward = action.stage, action.kind is ActionKind.FORWARD
    if forward and stage < last:
        return Action(stage + 1, action.kind, action.microbatch), times.forward_edge_s[stage]
    if not forward and stage > 0:
        return Action(stage - 1, action.kind, action.microbatch), times.backward_edge_s[stage - 1]
    return None, 0.0


def reduce_end_s(last_backwards: Sequence[Interval], buckets: Sequence[Bucket]) -> float:
    """When a stage's gradients are averaged over its replicas, whose last backwards are given.

    Buckets are in the order the backward makes them. Each starts when every replica has made it and the one before is
    through. A replica's backward makes buckets at the pace of its own interval.
    """
    whole_s = sum(bucket.backward_s for bucket in buckets)
    made_s, end_s = 0.0, 0.0
    for bucket in buckets:
        made_s += bucket.backward_s
        part = made_s / whole_s if whole_s else 1.0
        ready_s = max(interval.start_s + part * (interval.end_s - interval.start_s) for interval in last_backwards)
        end_s = max(end_s, ready_s) + bucket.all_reduce_s
    return max(end_s, max(interval.end_s for interval in last_backwards))


def simulate(
    schedule: Schedule, replicas: Sequence[PipelineTimes], buckets: Sequence[Sequence[Bucket]] | None = None
) -> float:
    """Seconds until the last rank is done. `buckets[stage]` None or empty: gradients are not reduced."""
    memory: dict[PipelineTimes, dict[Action, Interval]] = {}
    for times in replicas:
        if times not in memory:
            memory[times] = run_pipeline(schedule, times)
    runs = [memory[times] for times in replicas]
    ends_s = [interval.end_s for run in memory.values() for interval in run.values()]
    for stage, stage_buckets in enumerate(buckets or ()):
        final = schedule[stage][-1]
        assert final.kind is ActionKind.BACKWARD, "a stage's last action makes its last gradients"
        ends_s.append(reduce_end_s([run[final] for run in runs], stage_buckets))
    return max(ends_s)
