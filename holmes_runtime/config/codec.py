"""Codecs of what crosses pipeline edges, and the bytes of one packed message. Free of torch.

Block codecs write `BLOCK` numbers in a row as small integers and one scale. Against fp32 int8 messages are 3.88 times
smaller, int4 7.53 times.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

Codec = Literal["none", "bf16", "int8", "int4"]
"""From lossless to lossiest. none: values as they are; bf16: rounded to it; int8, int4: in blocks."""

CODECS: tuple[Codec, ...] = get_args(Codec)

BLOCK = 64  # numbers that share a scale; even, so that two int4 fill a byte
SCALE_BYTES = 2  # bf16: the range of fp32, so that no block is too small or too large for one
BF16_BYTES = 2
BITS = {"int8": 8, "int4": 4}


class EdgeSettings(NamedTuple):
    """How an edge is used: codecs of both directions, and how many micro-batches beyond those of 1F1B are under way."""

    activations: Codec
    gradients: Codec
    extra_in_flight: int


def codecs_up_to(lossiest: Codec, value_bytes: int) -> tuple[Codec, ...]:
    """What may be used where `lossiest` is allowed, mildest first; bf16 gains nothing on values of two bytes."""
    allowed = CODECS[: CODECS.index(lossiest) + 1]
    return tuple(codec for codec in allowed if codec != "bf16" or value_bytes > BF16_BYTES)


def packed_bytes(codec: Codec, elements: int, value_bytes: int) -> int:
    """Bytes of one message of `elements` values, each of `value_bytes` before; the last block is filled up."""
    if codec == "none":
        return elements * value_bytes
    if codec == "bf16":
        return elements * BF16_BYTES
    return -(-elements // BLOCK) * (BLOCK * BITS[codec] // 8 + SCALE_BYTES)
