"""Packing values that cross a pipeline edge into the bytes of its codec, and back.

A block codec scales each block to integers and rounds stochastically: it rounds up with the probability of the
fraction cut off, so the mean of what arrives is what was sent. The randomness depends only on the message's name, and
each operation is defined by IEEE 754: the same message has the same bits on any device and with any number of threads.
There is no error feedback, which would add the rounding errors to a later message: no sample comes twice. Repeated
messages, which have no name, are rounded to nearest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import cache
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from holmes_runtime.config.codec import BLOCK, SCALE_BYTES, Codec, packed_bytes

LEVELS = {"int8": 127, "int4": 7}  # integers on each side of zero
HIGH_NIBBLE = 16
# More than bf16 can round a scale down by, so no number of the block exceeds the levels.
SCALE_MARGIN = 1 + 2**-7
SMALLEST_SCALE = 2.0**-126  # bf16's smallest normal number: its inverse is finite, and a block of zeros stays zero
NOISE_BITS = 16  # of a random number; with an integer of up to 7 bits it is exact in fp32
TILE = 2**18  # stored random numbers, each value four times


class Direction(IntEnum):
    """The content of a message. Evaluations also send activations, with other random numbers than any step."""

    FORWARD = 0
    BACKWARD = 1
    EVALUATION = 2


class MessageName(NamedTuple):
    """The name of a message, unique in a run under any plan. `edge` e is between stages e and e + 1.

    `step` is that of the run, or the batch of an evaluation. `microbatch` counts over all replicas. `shard` is the
    tensor rank.
    """

    seed: int
    direction: Direction
    step: int
    microbatch: int
    edge: int
    shard: int


def pack(values: Tensor, codec: Codec, name: MessageName | None, block: int = BLOCK) -> Tensor:
    """Return the bytes of `values`, uint8 (packed_bytes,). values: fp32, bf16 or fp16 of any shape.

    Without a `name` a block codec rounds to nearest. `block` numbers share a scale.

    A block with a number that is not finite arrives without any finite number, so the run notices. Rounding up may turn
    numbers within one percent of the largest of their type into infinities. Under "none" the bytes are the memory of
    `values` itself if it is contiguous.
    """
    flat = values.detach().reshape(-1)
    if codec == "none":
        return flat.view(torch.uint8)
    if codec == "bf16":
        return flat.to(torch.bfloat16).view(torch.uint8)
    blocks = _in_blocks(flat, block)
    size = packed_bytes(codec, len(flat), flat.element_size(), block)
    packed = torch.empty(size, dtype=torch.uint8, device=flat.device)
    codes, scales = _codes_and_scales(packed, len(blocks))
    noise = _noise(name, flat.device)
    for part in _parts(blocks):
        _round(blocks[part].float(), LEVELS[codec], noise, codes[part], scales[part])
    return packed


def _round(blocks: Tensor, levels: int, noise: Iterator[Tensor], codes: Tensor, scales: Tensor) -> None:
    """Fill codes, int8 (blocks, bytes of one), and scales, bf16 (blocks,), from blocks, fp32 (blocks, block)."""
    largest = torch.maximum(blocks.amax(1), blocks.amin(1).neg_())
    scales.copy_(largest.mul_(SCALE_MARGIN / levels).clamp_(min=SMALLEST_SCALE))
    steps = blocks.mul(scales.float().reciprocal_().unsqueeze(1))
    for stretch, random in zip(torch.split(steps.view(-1), TILE), noise, strict=False):
        stretch.add_(random[: len(stretch)])
    steps.floor_()
    if codes.shape[1] < blocks.shape[1]:
        low, high = steps.chunk(2, 1)
        steps = low.add_(high, alpha=HIGH_NIBBLE)
    codes.copy_(steps)


def unpack(packed: Tensor, codec: Codec, shape: Sequence[int], dtype: torch.dtype, block: int = BLOCK) -> Tensor:
    """Return the values, of `shape` and `dtype`, that `pack` made into `packed`, as exactly as the codec keeps them."""
    if codec == "none":
        return packed.view(dtype).view(shape)
    if codec == "bf16":
        return packed.view(torch.bfloat16).to(dtype).view(shape)
    elements = math.prod(shape)
    blocks = torch.empty(-(-elements // block), block, dtype=dtype, device=packed.device)
    codes, scales = _codes_and_scales(packed, len(blocks))
    for part in _parts(blocks):
        steps = codes[part].float()
        if codec == "int4":
            high = steps.add(HIGH_NIBBLE // 2).mul_(1 / HIGH_NIBBLE).floor_()
            steps = torch.cat([steps.sub_(high, alpha=HIGH_NIBBLE), high], 1)
        blocks[part] = steps.mul_(scales[part].float().unsqueeze(1))
    return blocks.view(-1)[:elements].view(shape)


def _codes_and_scales(packed: Tensor, num_blocks: int) -> tuple[Tensor, Tensor]:
    """Return views of `packed`: the codes, int8 (blocks, bytes of one), and the scales, bf16 (blocks,)."""
    end = len(packed) - SCALE_BYTES * num_blocks
    codes = packed[:end].view(torch.int8).view(num_blocks, end // max(num_blocks, 1))
    return codes, packed[end:].view(torch.bfloat16)


def _parts(blocks: Tensor) -> Iterator[slice]:
    """Return slices of `blocks` (blocks, block) to process at once. On a CPU a slice fits its cache."""
    at_once = TILE // blocks.shape[1] if blocks.device.type == "cpu" else max(len(blocks), 1)
    return (slice(start, start + at_once) for start in range(0, len(blocks), at_once))


def _in_blocks(flat: Tensor, block: int) -> Tensor:
    """Return `flat` (elements,) as (blocks, block), padded with zeros."""
    missing = -len(flat) % block
    return (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(-1, block)


def _noise(name: MessageName | None, device: torch.device) -> Iterator[Tensor]:
    """Yield random numbers, fp32 (TILE,) at a time, without end; without a name, always one half.

    Each yield is a stretch of the same stored numbers. A hash chooses its start, so that over messages a number is
    exactly uniform.
    """
    if name is None:
        yield from repeat(torch.full((TILE,), 0.5, device=device))
        return
    tile, state = _tile(device), 0
    for part in name:
        state = _hash(state ^ part)
    while True:
        state = _hash(state)
        start = state % TILE
        yield tile[start : start + TILE]


def _hash(state: int) -> int:
    """Return the next number of a 64-bit sequence. Source: Steele et al., SplitMix64, 2014."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return state ^ state >> 31


@cache
def _tile(device: torch.device) -> Tensor:
    """Return fp32 (2 TILE,): the numbers (k + 1/2) / 2**NOISE_BITS, equally often and well mixed, all repeated once."""
    mixed = torch.arange(TILE)
    for factor in (0x2C1B3C6D, 0x297A2D39, 0x1B56C4E9):  # odd: each round is a permutation
        mixed = (mixed * factor + 0x9E3779B9) % TILE
        mixed ^= mixed >> 9
    tile: Tensor = ((mixed % 2**NOISE_BITS) + 0.5) / 2**NOISE_BITS
    return tile.repeat(2).to(device)
