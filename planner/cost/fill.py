"""The cost of filling and draining a pipeline under a schedule, relative to the cost under 1F1B.

Stages are equal and edges free. p ranks run m micro-batches of forward F and backward B each. Under 1F1B, a rank waits
(p - 1) (F + B) during fill and drain. Zero-bubble splits backwards into halves H that together take longer than B,
except on the first rank, which runs them whole. The first rank waits (p - 1) max(F, H). If m < p, it runs out of weight
gradients to fill the wait with and waits (p - m) min(F, H) more. The others begin F later and wait for one rank less,
and also (p - max(m, 2)) min(F, H). The later end counts. The simulation of equal stages agrees.
"""

from __future__ import annotations

from typing import Literal

from holmes_core.errors import HolmesError
from holmes_core.records.job import Job
from holmes_runtime.config.run_settings import Recompute
from holmes_runtime.config.schedule import ScheduleName
from planner.cost.collectives import PassTimes
from planner.cost.compute_time import split_factor
from planner.cost.engines import engine_of

Fill = Literal["1f1b", "zero-bubble"]
"""Schedules that differ in their fill; `eager` counts as 1F1B, from which it differs only on edges."""


def fills(job: Job, pp: int, recompute: Recompute, weight_shards: int = 1) -> tuple[Fill, ...]:
    """Return the fills that the job may run, simplest first."""
    fixed = job.parallel
    can_split = splits_backwards(job, pp, recompute, weight_shards) and (fixed.chunks or 1) == 1
    if not can_split or fixed.schedule not in (None, "zero-bubble"):
        return ("1f1b",)
    return ("zero-bubble",) if fixed.schedule == "zero-bubble" else ("1f1b", "zero-bubble")


def splits_backwards(job: Job, pp: int, recompute: Recompute, weight_shards: int) -> bool:
    """Return True if zero-bubble may delay a part of each backward.

    It may not with full recomputation, compiled layers, sharded weights or frozen ones.
    """
    may_split = "zero-bubble" in engine_of(job).schedules and not job.compiles and job.trainable is None
    return pp > 1 and recompute != "full" and may_split and weight_shards == 1


def check_whole_backwards(job: Job) -> None:
    """Raise HolmesError (wrong usage) for zero-bubble with compiled layers."""
    if job.parallel.schedule == "zero-bubble" and job.compiles:
        said = "left out, which means true on GPUs" if job.compile is None else "true"
        raise HolmesError(
            f"job: parallel.schedule zero-bubble with compile {said}: a compiled layer's backward cannot be split, so "
            "each of the two halves would run all of it",
            "set `compile: false`, or choose another schedule",
        )


def fill_of(schedule: ScheduleName) -> Fill:
    """Return the fill of `schedule`."""
    return "zero-bubble" if schedule == "zero-bubble" else "1f1b"


def fill_share(job: Job, fill: Fill, pp: int, num_microbatches: int, layer: PassTimes) -> float:
    """Return the fill of a schedule over that of 1F1B; above 1 if splitting costs more. `layer` is one of any class."""
    if fill == "1f1b" or not layer.both_s:
        return 1.0
    m, forward_s, half_s = num_microbatches, layer.forward_s, split_factor(job) * layer.backward_s / 2
    wait_s, more_s = max(forward_s, half_s), min(forward_s, half_s)
    first_s = (pp - 1) * wait_s + max(0, pp - m) * more_s
    longer_s = m * (2 * half_s - layer.backward_s)
    others_s = forward_s + longer_s + (pp - 2) * wait_s + max(0, pp - max(m, 2)) * more_s
    return max(first_s, others_s) / ((pp - 1) * layer.both_s)
