"""Codecs of edges: the ones a job may use, and the seconds that packing takes on the slots at both ends."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.records.job import Codec, Job
from holmes_runtime.config.codec import codecs_up_to, with_packing
from holmes_runtime.config.run_settings import VALUE_BYTES


def allowed_codecs(job: Job) -> tuple[Codec, ...]:
    """Return the codecs that job.yaml allows on edges, mildest first; bf16 gains nothing on values of two bytes."""
    return codecs_up_to(job.wire.edges, VALUE_BYTES[job.value_type])


def lossiest_codec(job: Job) -> Codec:
    """Return the lossiest of them: the fewest bytes."""
    return allowed_codecs(job)[-1]


def with_messages(
    job: Job,
    values: int,
    stages: Sequence[tuple[float, float]],
    codecs: Sequence[tuple[Codec, Codec]],
    action_s: Sequence[float],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the seconds of forward and backward by stage, with the packing of messages of so many values.

    `codecs` are by edge, of activations and of gradients; `action_s`, by stage, is the time an action takes more.
    """
    longer = [(f + more_s, b + more_s) for (f, b), more_s in zip(stages, action_s, strict=True)]
    return with_packing(job.device, values, longer, codecs)
