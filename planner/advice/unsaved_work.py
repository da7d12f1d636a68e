"""Sentences about long jobs that save nothing, so that the loss of any host loses all work, and about jobs that do not
evaluate the models they save.
"""

from __future__ import annotations

from math import lcm

from holmes_core.records.job import Job
from holmes_core.units import format_duration

WORTH_SAVING_S = 3600.0
SAVED_EVERY_S = 900.0  # the most that the suggested setting loses, approximately


def unsaved_sentences(job: Job, step_s: float) -> tuple[str, ...]:
    """Return a sentence if the job takes more than an hour at `step_s` seconds per step and has no `checkpoint:`."""
    lasts_s = job.steps * step_s
    if job.checkpoint is not None or lasts_s <= WORTH_SAVING_S or not job.is_bundled:
        return ()
    every_steps = max(1, round(SAVED_EVERY_S / step_s))
    return (
        f"The job saves no checkpoints: a failure within its {format_duration(lasts_s)} loses all steps. Add to "
        f"job.yaml `checkpoint: {{path: ~/checkpoints, every_steps: {every_steps}}}`.",
    )


def unevaluated_sentences(job: Job) -> tuple[str, ...]:
    """Return a sentence if some checkpoints of the job are of steps without an evaluation, which cannot be the best."""
    evaluation, checkpoint = job.evaluation, job.checkpoint
    if evaluation is None or checkpoint is None or checkpoint.every_steps % evaluation.every_steps == 0:
        return ()
    both = lcm(evaluation.every_steps, checkpoint.every_steps)
    which = f"one in {both // checkpoint.every_steps}" if both <= job.steps else "none"
    return (
        f"Only checkpoints of evaluated steps can be kept as the best, here {which}: set checkpoint.every_steps "
        f"({checkpoint.every_steps}) to a multiple of evaluation.every_steps ({evaluation.every_steps}).",
    )
