"""A rank's flat piece of a tensor as boxes of the whole tensor.

A rank holds a flat, row-major range of its tensor-parallel part of each tensor. Checkpoints and published models have
only boxes of whole tensors, so any plan can load what another plan saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from holmes_runtime.model.tensor_part import TensorPart
from holmes_runtime.parallel.gradient_buckets import Shard


@dataclass(frozen=True)
class ShardSlice:
    """An axis-aligned part of a tensor, `sizes` from `offsets`, whose elements are consecutive from flat `start`."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        """One past the flat index of the last element."""
        return self.start + math.prod(self.sizes)


def boxes(shape: tuple[int, ...], start: int, stop: int) -> list[ShardSlice]:
    """Return row-major elements [start, stop) of a tensor of `shape` as at most 2 n - 1 boxes, in order, for n dims."""
    if start >= stop:
        return []
    if len(shape) <= 1:
        return [ShardSlice((start,) * len(shape), (stop - start,) * len(shape), start)]
    row = math.prod(shape[1:])
    first_whole, last_whole = -(-start // row), stop // row
    if first_whole > last_whole:  # within one row
        return _in_row(shape, start // row, start, stop)
    found = _in_row(shape, first_whole - 1, start, first_whole * row)
    if first_whole < last_whole:
        corner, rest = (first_whole, *(0 for _ in shape[1:])), shape[1:]
        found.append(ShardSlice(corner, (last_whole - first_whole, *rest), first_whole * row))
    return found + _in_row(shape, last_whole, last_whole * row, stop)


def _in_row(shape: tuple[int, ...], index: int, start: int, stop: int) -> list[ShardSlice]:
    """Return flat elements [start, stop), all with first index `index`, as boxes."""
    base = index * math.prod(shape[1:])
    inner = boxes(shape[1:], start - base, stop - base)
    return [ShardSlice((index, *box.offsets), (1, *box.sizes), box.start + base) for box in inner]


class Chunk(NamedTuple):
    """The place of a box in a whole tensor."""

    offsets: torch.Size
    sizes: torch.Size


@dataclass(frozen=True)
class TensorPiece:
    """Flat elements [start, stop) of one part of a tensor.

    values: (stop - start,), the live memory that is saved from and loaded into.
    """

    values: Tensor
    part: TensorPart
    start: int
    stop: int

    def chunks(self) -> list[tuple[Chunk, Tensor]]:
        """Return each box of the piece: its place in the whole tensor, and its values in their shape."""
        found = []
        for box in boxes(self.part.shape, self.start, self.stop):
            corner = [local + offset for local, offset in zip(box.offsets, self.part.offset, strict=True)]
            values = self.values[box.start - self.start : box.stop - self.start].view(box.sizes)
            found.append((Chunk(torch.Size(corner), torch.Size(box.sizes)), values))
        return found

    def chunk_at(self, offsets: torch.Size | None) -> Tensor:
        """Return the values of the box at `offsets` of the whole tensor, to read from or to write to."""
        return next(values for chunk, values in self.chunks() if chunk.offsets == offsets)


def whole_piece(parameter: Tensor, part: TensorPart) -> TensorPiece:
    """Return the whole of a parameter, which is `part` of a tensor."""
    return TensorPiece(parameter.detach().flatten(), part, 0, parameter.numel())


def weights_of(shards: Iterable[Shard]) -> dict[str, TensorPiece]:
    """Return the pieces of weights in `shards`, by name."""
    return {shard.name: TensorPiece(shard.master, shard.part, shard.start, shard.stop) for shard in shards}


def pieces_of(shards: Iterable[Shard]) -> dict[str, TensorPiece]:
    """Return all tensors that a rank holds parts of, by their names in a checkpoint."""
    return {
        f"{kind}/{shard.name}": TensorPiece(values, shard.part, shard.start, shard.stop)
        for shard in shards
        for kind, values in (
            ("weight", shard.master),
            ("exp_avg", shard.exp_avg),
            ("exp_avg_sq", shard.exp_avg_sq),
        )
    }
