"""Pipeline schedules as lists of actions: what the planner simulates is what the runtime executes. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ActionKind(Enum):
    """What a stage computes for one micro-batch."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True)
class Action:
    """Stage `stage` runs the forward or the backward of micro-batch `microbatch`."""

    stage: int
    kind: ActionKind
    microbatch: int


def one_f_one_b(num_stages: int, num_microbatches: int) -> dict[int, tuple[Action, ...]]:
    """For each stage, its actions of one step in order: 1F1B without interleaving.

    Stage s runs min(p - s, m) forwards, then alternates backward and forward until all m micro-batches are done, so
    it never holds the activations of more than min(p - s, m) micro-batches.
    Source: Narayanan et al., PipeDream-Flush, 2021. Raises ValueError for fewer than one stage or micro-batch.
    """
    if num_stages < 1 or num_microbatches < 1:
        raise ValueError(f"need at least one stage and one micro-batch, got {num_stages} and {num_microbatches}")
    return {stage: _one_stage(stage, num_stages - stage, num_microbatches) for stage in range(num_stages)}


def _one_stage(stage: int, max_in_flight: int, num_microbatches: int) -> tuple[Action, ...]:
    warmup = min(max_in_flight, num_microbatches)
    actions = [Action(stage, ActionKind.FORWARD, microbatch) for microbatch in range(warmup)]
    for microbatch in range(num_microbatches):
        actions.append(Action(stage, ActionKind.BACKWARD, microbatch))
        if microbatch + warmup < num_microbatches:
            actions.append(Action(stage, ActionKind.FORWARD, microbatch + warmup))
    return tuple(actions)
