"""Lanes between islands: the ranks that own the same elements, and these elements.

Every island holds each parameter once, cut into pieces by its own plan. The elements that the same ranks own form a
lane, and only these ranks exchange them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holmes_runtime.checkpoint.tensor_piece import boxes
from holmes_runtime.config.checks import check, check_counts
from holmes_runtime.config.run_settings import OuterSync

MAX_ELEMENTS = 1 << 50
MAX_DIMS = 16


@dataclass(frozen=True)
class FlatSlice:
    """Row-major elements [start, stop) of the part of `shape` at `offset` of a parameter of `global_shape`."""

    name: str
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    start: int
    stop: int

    def __post_init__(self) -> None:
        check_counts(self, MAX_ELEMENTS, "global_shape", "offset", "shape", "start", "stop")
        dims = {len(self.global_shape), len(self.offset), len(self.shape)}
        check("shape", self.shape, "must have as many dimensions", len(dims) == 1 and max(dims) <= MAX_DIMS)
        ends = (offset + size for offset, size in zip(self.offset, self.shape, strict=True))
        is_inside = all(end <= size for end, size in zip(ends, self.global_shape, strict=True))
        check("shape", self.shape, "must lie within the parameter", is_inside)
        check("stop", self.stop, "must be in the part", self.start <= self.stop <= math.prod(self.shape))


class ShardLayout(NamedTuple):
    """The pieces that each rank of an island owns, by rank. Together they cover each parameter once."""

    ranks: tuple[tuple[FlatSlice, ...], ...]


class Cell(NamedTuple):
    """A box of a parameter: `sizes` from `offsets`, by dimension."""

    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


class Lane(NamedTuple):
    """The ranks that own the same cells, one per island in the order of islands, and these cells, sorted."""

    owners: tuple[int, ...]
    cells: tuple[Cell, ...]

    @property
    def elements(self) -> int:
        return sum(cell.elements for cell in self.cells)


def cells_of(piece: FlatSlice) -> list[Cell]:
    """Return the boxes of the parameter that make up the piece, in the order of its elements."""
    return [
        Cell(piece.name, tuple(map(sum, zip(box.offsets, piece.offset, strict=True))), box.sizes)
        for box in boxes(piece.shape, piece.start, piece.stop)
    ]


def lanes_of(layouts: Sequence[ShardLayout], island: int, rank: int) -> list[Lane]:
    """Return the lanes of `rank` of the island at position `island` in `layouts`, sorted by owners.

    Raises:
        ValueError: another island lacks elements that the rank owns; names the parameter.
    """
    names = {piece.name for piece in layouts[island].ranks[rank]}
    held = [_by_name(layout, names) for layout in layouts]
    found: dict[tuple[int, ...], list[Cell]] = {}
    for piece in layouts[island].ranks[rank]:
        owned: list[tuple[tuple[int, ...], Cell]] = [((), cell) for cell in cells_of(piece)]
        for position, by_name in enumerate(held):
            if position == island:
                owned = [((*owners, rank), cell) for owners, cell in owned]
            else:
                owned = [
                    ((*owners, owner), both)
                    for owners, cell in owned
                    for owner, other in by_name[piece.name]
                    if (both := _intersection(cell, other)) is not None
                ]
            if sum(cell.elements for _, cell in owned) != piece.stop - piece.start:
                raise ValueError(
                    f"parameter {piece.name} of shape {piece.global_shape}: the island at position {position} lacks "
                    f"some of the {piece.stop - piece.start} elements on rank {rank}: islands must train the same model"
                )
        for owners, cell in owned:
            found.setdefault(owners, []).append(cell)
    return [Lane(owners, tuple(sorted(cells))) for owners, cells in sorted(found.items())]


def _by_name(layout: ShardLayout, names: Iterable[str]) -> dict[str, list[tuple[int, Cell]]]:
    """Return by parameter the cells of an island, each with the rank that owns it."""
    found: dict[str, list[tuple[int, Cell]]] = {name: [] for name in names}
    for rank, pieces in enumerate(layout.ranks):
        for piece in pieces:
            if piece.name in found:
                found[piece.name] += ((rank, cell) for cell in cells_of(piece))
    return found


def _intersection(one: Cell, other: Cell) -> Cell | None:
    """Return the common part of two cells of one parameter; None without one, or if their dimensions differ."""
    if len(one.sizes) != len(other.sizes):
        return None
    offsets, sizes = [], []
    for first, size, other_first, other_size in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True):
        low, high = max(first, other_first), min(first + size, other_first + other_size)
        if low >= high:
            return None
        offsets.append(low)
        sizes.append(high - low)
    return Cell(one.name, tuple(offsets), tuple(sizes))


class Fragments(NamedTuple):
    """The fragment of each parameter. Outer sync `last` includes all parameters."""

    by_name: dict[str, int]
    num_fragments: int
    last: int

    def has(self, name: str, exchange: int) -> bool:
        """Return True if outer sync `exchange` includes the parameter."""
        return exchange >= self.last or self.by_name[name] == exchange % self.num_fragments

    def names(self, exchange: int) -> list[str]:
        """Return the parameters of outer sync `exchange`."""
        return [name for name in self.by_name if self.has(name, exchange)]

    def rule(self, exchange: int, sync: OuterSync) -> tuple[float, float]:
        """Return the rate and momentum of the outer step. The last is a plain mean, as no inner steps follow it."""
        return (1.0, 0.0) if exchange >= self.last else (sync.outer_rate, sync.momentum)


def fragments_of(layout: ShardLayout, num_fragments: int) -> dict[str, int]:
    """Return the fragment of each parameter: the largest first, each in the smallest fragment so far.

    Only names and shapes decide, so all islands compute the same.
    """
    sizes = {piece.name: math.prod(piece.global_shape) for pieces in layout.ranks for piece in pieces}
    filled = [0] * num_fragments
    found: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        found[name] = filled.index(min(filled))
        filled[found[name]] += sizes[name]
    return found
