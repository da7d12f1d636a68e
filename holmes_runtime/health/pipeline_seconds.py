"""Seconds of one replica's pipeline, which follow from the actions of its schedule. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_runtime.config.precedence import find_precedence, follow
from holmes_runtime.config.schedule import Schedule

WEIGHT_PART = 0.5  # of a backward: gradients of weights and of inputs take one matrix product each
Wire = tuple[float, float]
"""The seconds until a message that has left arrives, and the seconds that it keeps the wire busy."""


@dataclass(frozen=True)
class MeasuredPipeline:
    """Seconds per micro-batch by stage; `wires` by earlier pipeline rank, of activations and of gradients."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    wires: Sequence[Sequence[Wire]]


def pipeline_s(schedule: Schedule, times: MeasuredPipeline) -> float:
    """Return the seconds until all actions have ended. Sends block no action; a wire takes one message at a time.

    The first stage has no input gradient, so its whole backward counts as weight gradients.

    Raises:
        ValueError: actions wait for one another in a circle.
    """
    forward_s, backward_s = times.forward_s, times.backward_s
    inputs_s = [0.0, *(seconds * (1 - WEIGHT_PART) for seconds in backward_s[1:])]
    weights_s = [whole_s - input_s for whole_s, input_s in zip(backward_s, inputs_s, strict=True)]
    work_s = [*forward_s, *forward_s, *backward_s, *inputs_s, *weights_s]
    wires = [times.wires[stage % len(schedule)] for stage in range(len(forward_s) - 1)]
    activations, gradients = ([wire[direction] for wire in wires] for direction in (0, 1))
    edge_s = [*(busy_s for _, busy_s in (*activations, *gradients)), 0.0]
    forward_late_s = [0.0, *(latency_s for latency_s, _ in activations)]
    backward_late_s = [*(latency_s for latency_s, _ in gradients), 0.0]
    late_s = [*forward_late_s, *forward_late_s, *backward_late_s, *backward_late_s, *(0.0 for _ in forward_s)]
    ends_s, _ = follow(find_precedence(schedule), work_s, edge_s, late_s, [0.0] * len(work_s))
    return max(ends_s)
