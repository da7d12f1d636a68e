"""The seconds of one replica's pipeline under a schedule, by following its actions. Free of torch.

The planner's simulation (planner/schedule/simulate.py) says the same of a pipeline before it runs, and prices gradients
too; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_runtime.config.schedule import Action, ActionKind, Schedule

WEIGHT_PART = 0.5  # of a backward, what its weights' gradients take: a matrix costs as much for them as for its input
Wire = tuple[float, float]
"""Seconds until a message that has left arrives, and for which it keeps the wire busy."""


@dataclass(frozen=True)
class PipelineTimes:
    """Seconds per micro-batch by stage; `wires` by earlier pipeline rank, of activations and of gradients."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    wires: Sequence[Sequence[Wire]]


def pipeline_s(schedule: Schedule, times: PipelineTimes) -> float:
    """Seconds until all actions have ended. Sends hold up nobody; a wire takes one message at a time.

    Raises ValueError for actions that wait for one another.
    """
    return _Followed(schedule, times).end_s()


class _Followed:
    """Where the ranks are in their actions."""

    def __init__(self, schedule: Schedule, times: PipelineTimes) -> None:
        self._schedule, self._times = schedule, times
        self._last_stage = len(times.forward_s) - 1
        self._next = dict.fromkeys(schedule, 0)
        self._free_s = dict.fromkeys(schedule, 0.0)
        self._wire_free_s: dict[tuple[int, bool], float] = {}
        self._there_s: dict[tuple[int, bool, int], float] = {}  # input of (stage, is it a gradient, micro-batch)

    def end_s(self) -> float:
        """When the last rank is done."""
        while any(position < len(self._schedule[rank]) for rank, position in self._next.items()):
            if not any(self._advance(rank) for rank in self._schedule):
                raise ValueError("the schedule's actions wait for one another")
        return max(self._free_s.values())

    def _advance(self, rank: int) -> bool:
        """Runs what `rank` can run now; whether that was anything."""
        actions, begun = self._schedule[rank], self._next[rank]
        for action in actions[begun:]:
            ready_s = self._ready_s(action)
            if ready_s is None:
                break
            self._free_s[rank] = max(self._free_s[rank], ready_s) + self._work_s(action)
            self._send(rank, action)
            self._next[rank] += 1
        return self._next[rank] > begun

    def _ready_s(self, action: Action) -> float | None:
        """When the action's input is there; None if it has not been sent yet."""
        is_gradient = action.kind is not ActionKind.FORWARD
        if action.kind is ActionKind.BACKWARD_WEIGHT or action.stage == (self._last_stage if is_gradient else 0):
            return 0.0
        return self._there_s.get((action.stage, is_gradient, action.microbatch))

    def _work_s(self, action: Action) -> float:
        forward_s, backward_s = self._times.forward_s[action.stage], self._times.backward_s[action.stage]
        return {
            ActionKind.FORWARD: forward_s,
            ActionKind.BACKWARD: backward_s,
            ActionKind.BACKWARD_INPUT: backward_s * (1 - WEIGHT_PART),
            ActionKind.BACKWARD_WEIGHT: backward_s * WEIGHT_PART,
        }[action.kind]

    def _send(self, rank: int, action: Action) -> None:
        """Puts what the action made on its wire, if another stage needs it."""
        is_gradient = action.kind is not ActionKind.FORWARD
        target = action.stage - 1 if is_gradient else action.stage + 1
        if action.kind is ActionKind.BACKWARD_WEIGHT or not 0 <= target <= self._last_stage:
            return
        edge = target % len(self._schedule) if is_gradient else rank
        latency_s, busy_s = self._times.wires[edge][is_gradient]
        begin_s = max(self._free_s[rank], self._wire_free_s.get((edge, is_gradient), 0.0))
        self._wire_free_s[edge, is_gradient] = begin_s + busy_s
        self._there_s[target, is_gradient, action.microbatch] = begin_s + busy_s + latency_s
