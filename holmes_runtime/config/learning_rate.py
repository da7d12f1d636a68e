"""The learning rate of every step, as a pure function: it needs no saved state and is the same after any restart."""

from __future__ import annotations

import math

from holmes_runtime.config.run_settings import OptimizerSettings


def learning_rate(settings: OptimizerSettings, step: int, num_steps: int) -> float:
    """Return the learning rate of `step`, counted from 0, in a run of `num_steps`.

    It rises by equal amounts over the warm-up, whose last step has the full rate. Then it stays, or falls on a line or
    on half a cosine (Loshchilov and Hutter, SGDR, 2017) so that the last step of the run has `min_learning_rate`.
    """
    highest, lowest = settings.learning_rate, settings.min_learning_rate
    if step < settings.warmup_steps:
        return highest * (step + 1) / settings.warmup_steps
    if settings.decay == "constant":
        return highest
    first, last = max(settings.warmup_steps - 1, 0), num_steps - 1
    progress = min((step - first) / (last - first), 1.0) if last > first else 1.0
    share = 1 - progress if settings.decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return lowest + (highest - lowest) * share
