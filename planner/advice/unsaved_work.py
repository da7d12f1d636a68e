"""Sentences on long jobs that save nothing, so that the loss of any host takes all their work, and on jobs that
evaluate no model that they save.
"""

from __future__ import annotations

from math import lcm

from holmes_core.records.job import Job
from holmes_core.units import format_duration

WORTH_SAVING_S = 3600.0
SAVED_EVERY_S = 900.0  # what the suggested setting loses at most, more or less


def unsaved_sentences(job: Job, step_s: float) -> tuple[str, ...]:
    """Return the sentence on a job of `step_s` seconds a step that takes more than an hour and has no `checkpoint:`."""
    lasts_s = job.steps * step_s
    if job.checkpoint is not None or lasts_s <= WORTH_SAVING_S or not job.is_bundled:
        return ()
    every_steps = max(1, round(SAVED_EVERY_S / step_s))
    return (
        f"The job saves no checkpoints: whatever ends it within its {format_duration(lasts_s)} loses all steps. Add to "
        f"job.yaml `checkpoint: {{path: ~/checkpoints, every_steps: {every_steps}}}`.",
    )


def unevaluated_sentences(job: Job) -> tuple[str, ...]:
    """Return the sentence on a job some of whose checkpoints are of steps without an evaluation: none of them can be
    the best.
    """
    evaluation, checkpoint = job.evaluation, job.checkpoint
    if evaluation is None or checkpoint is None or checkpoint.every_steps % evaluation.every_steps == 0:
        return ()
    both = lcm(evaluation.every_steps, checkpoint.every_steps)
    which = f"one in {both // checkpoint.every_steps} is" if both <= job.steps else "none is"
    return (
        f"Of the checkpoints {which} of an evaluated step and may be kept as the best: set checkpoint.every_steps "
        f"({checkpoint.every_steps}) to a multiple of evaluation.every_steps ({evaluation.every_steps}).",
    )
