"""Codecs that a job may use on edges."""

from __future__ import annotations

from holmes_core.records.job import Job
from holmes_runtime.config.codec import Codec, codecs_up_to
from holmes_runtime.config.run_settings import VALUE_BYTES


def allowed_codecs(job: Job) -> tuple[Codec, ...]:
    """Return the codecs that job.yaml allows on edges, mildest first. bf16 gains nothing on values of two bytes."""
    return codecs_up_to(job.wire.edges, VALUE_BYTES[job.value_type])


def lossiest_codec(job: Job) -> Codec:
    """Return the lossiest allowed codec, which sends the fewest bytes."""
    return allowed_codecs(job)[-1]
