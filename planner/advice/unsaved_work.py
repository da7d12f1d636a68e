"""A sentence on long jobs that save nothing: the loss of any host takes all their work."""

from __future__ import annotations

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
