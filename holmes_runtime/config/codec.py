"""Codecs for messages on pipeline edges: their bytes, and the seconds of packing. Free of torch.

Block codecs write `BLOCK` consecutive numbers as small integers with one scale. Compared with fp32, int8 messages are
3.88 times smaller and int4 messages 7.53 times; with the longer blocks of outer syncs 3.94 and 7.76 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

Codec = Literal["none", "bf16", "int8", "int4"]
"""From lossless to lossiest. none: values as they are; bf16: rounded to bf16; int8, int4: in blocks."""

Device = Literal["cuda", "cpu"]

CODECS: tuple[Codec, ...] = get_args(Codec)

BLOCK = 64  # numbers that share a scale; even, as two int4 fill a byte
OUTER_BLOCK = 128  # between islands, where error feedback corrects the rounding in the next outer sync
SCALE_BYTES = 2  # bf16, with the range of fp32: fits every block
BF16_BYTES = 2
BITS = {"int8": 8, "int4": 4}

# Seconds per value on one CPU thread, in messages of at least 256 KiB: the slower of fp32 and bf16, rounded up.
# Measured by benchmarks/codec_speed.py, on a busy machine with two cores, torch 2.13, on 2026-11-22.
CPU_PACK_S = {"none": 0.0, "bf16": 0.3e-9, "int8": 3.5e-9, "int4": 4.5e-9}
CPU_UNPACK_S = {"none": 0.0, "bf16": 0.3e-9, "int8": 1.5e-9, "int4": 2.1e-9}
# Assumed, not measured: on a GPU, the kernels together move each value this many times (4 bytes, in and out).
GPU_PACK_PASSES = {"none": 0, "bf16": 1, "int8": 24, "int4": 26}
GPU_UNPACK_PASSES = {"none": 0, "bf16": 1, "int8": 4, "int4": 6}
GPU_BYTES_PER_S = 1e12
GPU_PASS_BYTES = 8


class EdgeSettings(NamedTuple):
    """An edge's codecs in both directions, and its micro-batches in flight beyond 1F1B."""

    activations: Codec
    gradients: Codec
    extra_in_flight: int


def codecs_up_to(lossiest: Codec, value_bytes: int) -> tuple[Codec, ...]:
    """Return the codecs up to `lossiest`, mildest first. bf16 is left out for two-byte values: it saves nothing."""
    allowed = CODECS[: CODECS.index(lossiest) + 1]
    return tuple(codec for codec in allowed if codec != "bf16" or value_bytes > BF16_BYTES)


def packed_bytes(codec: Codec, elements: int, value_bytes: int, block: int = BLOCK) -> int:
    """Return the bytes of a message of `elements` values of `value_bytes` each. The last block is padded."""
    if codec == "none":
        return elements * value_bytes
    if codec == "bf16":
        return elements * BF16_BYTES
    return -(-elements // block) * (block * BITS[codec] // 8 + SCALE_BYTES)


def pack_s(device: Device, codec: Codec, values: int) -> float:
    """Return the seconds that the sender's slot takes to pack a message of `values` values."""
    if device == "cpu":
        return values * CPU_PACK_S[codec]
    return values * GPU_PACK_PASSES[codec] * GPU_PASS_BYTES / GPU_BYTES_PER_S


def unpack_s(device: Device, codec: Codec, values: int) -> float:
    """Return the seconds that the receiver's slot takes to unpack such a message."""
    if device == "cpu":
        return values * CPU_UNPACK_S[codec]
    return values * GPU_UNPACK_PASSES[codec] * GPU_PASS_BYTES / GPU_BYTES_PER_S


def with_packing(
    device: Device, values: int, stages: Sequence[tuple[float, float]], codecs: Sequence[tuple[Codec, Codec]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the seconds of forward and backward by stage, including packing and unpacking messages of `values` values.

    `codecs` has one pair per edge, for activations and for gradients.
    """
    forward_s, backward_s = ([*seconds] for seconds in zip(*stages, strict=True))
    for edge, (activations, gradients) in enumerate(codecs):
        forward_s[edge] += pack_s(device, activations, values)
        forward_s[edge + 1] += unpack_s(device, activations, values)
        backward_s[edge + 1] += pack_s(device, gradients, values)
        backward_s[edge] += unpack_s(device, gradients, values)
    return tuple(forward_s), tuple(backward_s)
