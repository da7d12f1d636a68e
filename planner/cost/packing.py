"""Codecs of edges: which ones a job may use, and the seconds that messages take of the slots at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from holmes_core.records.job import Codec, Job

CODECS: tuple[Codec, ...] = get_args(Codec)  # from lossless to lossiest
# Seconds a value on one CPU thread, in messages of a quarter MiB and more: the slower of fp32 and bf16, rounded up.
# Measured by what benchmarks/codec_speed.py times, on a busy machine of two cores, torch 2.13, on 2026-11-22.
CPU_PACK_S = {"none": 0.0, "bf16": 0.3e-9, "int8": 3.5e-9, "int4": 4.5e-9}
CPU_UNPACK_S = {"none": 0.0, "bf16": 0.3e-9, "int8": 1.5e-9, "int4": 2.1e-9}
# Assumption, not measured: on a GPU the kernels one after another move each value so many times (4 bytes, in and out).
GPU_PACK_PASSES = {"none": 0, "bf16": 1, "int8": 24, "int4": 26}
GPU_UNPACK_PASSES = {"none": 0, "bf16": 1, "int8": 4, "int4": 6}
GPU_BYTES_PER_S = 1e12
GPU_PASS_BYTES = 8


def allowed_codecs(job: Job) -> tuple[Codec, ...]:
    """What job.yaml allows on edges, mildest first; bf16 gains nothing on values of two bytes."""
    allowed = CODECS[: CODECS.index(job.wire.edges) + 1]
    return tuple(codec for codec in allowed if codec != "bf16" or job.value_type == "fp32")


def lossiest_codec(job: Job) -> Codec:
    """The lossiest of them: the fewest bytes."""
    return allowed_codecs(job)[-1]


def pack_s(job: Job, codec: Codec, values: int) -> float:
    """Seconds the sender's slot takes to pack a message of so many values."""
    if job.device == "cpu":
        return values * CPU_PACK_S[codec]
    return values * GPU_PACK_PASSES[codec] * GPU_PASS_BYTES / GPU_BYTES_PER_S


def unpack_s(job: Job, codec: Codec, values: int) -> float:
    """Seconds the receiver's slot takes to unpack it."""
    if job.device == "cpu":
        return values * CPU_UNPACK_S[codec]
    return values * GPU_UNPACK_PASSES[codec] * GPU_PASS_BYTES / GPU_BYTES_PER_S


def with_messages(
    job: Job,
    values: int,
    stages: Sequence[tuple[float, float]],
    codecs: Sequence[tuple[Codec, Codec]],
    action_s: Sequence[float],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of forward and backward by stage, with what they do for messages of so many values.

    `codecs` are by edge, of activations and of gradients; `action_s`, by stage, is what it takes beside packing.
    """
    computed_s = zip(*stages, strict=True)
    forward_s, backward_s = ([s + more_s for s, more_s in zip(each, action_s, strict=True)] for each in computed_s)
    for edge, (activations, gradients) in enumerate(codecs):
        forward_s[edge] += pack_s(job, activations, values)
        forward_s[edge + 1] += unpack_s(job, activations, values)
        backward_s[edge + 1] += pack_s(job, gradients, values)
        backward_s[edge] += unpack_s(job, gradients, values)
    return tuple(forward_s), tuple(backward_s)
