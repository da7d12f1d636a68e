"""The seconds that packing and unpacking a message take. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from holmes_runtime.config.codec import Codec

Device = Literal["cpu", "cuda"]

# Seconds a value on one CPU thread, in messages of a quarter MiB and more: the slower of fp32 and bf16, rounded up.
# Measured by what benchmarks/codec_speed.py times, on a busy machine of two cores, torch 2.13, on 2026-11-22.
CPU_PACK_S = {"none": 0.0, "bf16": 0.3e-9, "int8": 3.5e-9, "int4": 4.5e-9}
CPU_UNPACK_S = {"none": 0.0, "bf16": 0.3e-9, "int8": 1.5e-9, "int4": 2.1e-9}
# Assumption, not measured: on a GPU the kernels one after another move each value so many times (4 bytes, in and out).
GPU_PACK_PASSES = {"none": 0, "bf16": 1, "int8": 24, "int4": 26}
GPU_UNPACK_PASSES = {"none": 0, "bf16": 1, "int8": 4, "int4": 6}
GPU_BYTES_PER_S = 1e12
GPU_PASS_BYTES = 8


def pack_s(device: Device, codec: Codec, values: int) -> float:
    """Seconds the sender's slot takes to pack a message of so many values."""
    if device == "cpu":
        return values * CPU_PACK_S[codec]
    return values * GPU_PACK_PASSES[codec] * GPU_PASS_BYTES / GPU_BYTES_PER_S


def unpack_s(device: Device, codec: Codec, values: int) -> float:
    """Seconds the receiver's slot takes to unpack it."""
    if device == "cpu":
        return values * CPU_UNPACK_S[codec]
    return values * GPU_UNPACK_PASSES[codec] * GPU_PASS_BYTES / GPU_BYTES_PER_S


def with_packing(
    device: Device, values: int, stages: Sequence[tuple[float, float]], codecs: Sequence[tuple[Codec, Codec]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of forward and backward by stage, with what they pack and unpack of messages of so many values.

    `codecs` are by edge, of activations and of gradients.
    """
    forward_s, backward_s = ([*seconds] for seconds in zip(*stages, strict=True))
    for edge, (activations, gradients) in enumerate(codecs):
        forward_s[edge] += pack_s(device, activations, values)
        forward_s[edge + 1] += unpack_s(device, activations, values)
        backward_s[edge + 1] += pack_s(device, gradients, values)
        backward_s[edge] += unpack_s(device, gradients, values)
    return tuple(forward_s), tuple(backward_s)
