"""The islands' common state of the pieces that one rank owns, in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from holmes_runtime.checkpoint.tensor_piece import TensorPiece
from holmes_runtime.config.run_settings import OuterSync
from holmes_runtime.outer.island_weights import IslandWeights, Values
from holmes_runtime.outer.lanes import Cell, FlatSlice
from holmes_runtime.outer.outer_step import estimated_anchor


class OuterState:
    """Anchor and momentum of the pieces that a rank owns, and this island's unsent remainders.

    `error` is the rounding error of the codec, None without a codec. `correction` is the anchor minus the estimate
    from which training continued; it is added to the parameters after `delay_steps`, and None without a delay.
    `frozen_weights` identifies weights that are not exchanged.
    """

    def __init__(self, weights: IslandWeights, sync: OuterSync, frozen_weights: str | None = None) -> None:
        self._weights, self._sync, self.frozen_weights = weights, sync, frozen_weights
        self.owned = weights.owned
        self.anchor = self.masters(self.owned)
        self.momentum = self._zeros()
        self.error = None if sync.codec == "none" else self._zeros()
        self.correction = self._zeros() if sync.delay_steps else None

    def _zeros(self) -> Values:
        return {name: torch.zeros_like(values) for name, values in self.anchor.items()}

    def masters(self, names: Iterable[str]) -> Values:
        """Return copies of the current masters of `names`."""
        return {name: self._weights.read(name).to("cpu", torch.float32, copy=True) for name in names}

    def start_from_masters(self) -> None:
        """Take the current weights as the anchor."""
        for name, values in self.anchor.items():
            values.copy_(self._weights.read(name))

    def anchor_sum(self) -> int:
        """Return the sum of the anchor's bits as integers. Over all ranks it does not depend on the layout."""
        return sum(int(each.view(torch.int32).sum(dtype=torch.int64)) for each in self.anchor.values())

    def take(self, anchor: Values, momentum: Values, error: Values | None) -> None:
        """Take over the state of some parameters after an outer sync."""
        for name in anchor:
            self.anchor[name].copy_(anchor[name])
            self.momentum[name].copy_(momentum[name])
        for name, rounded in (error or {}).items():
            assert self.error is not None
            self.error[name].copy_(rounded)

    def estimate(self, sent: Values) -> Values:
        """Return the anchor if all islands had sent the same as this one, and set the correction to its negative."""
        assert self.correction is not None
        rate, factor = self._sync.outer_rate, self._sync.momentum
        estimate = {
            name: estimated_anchor(self.anchor[name], self.momentum[name], values, rate, factor)
            for name, values in sent.items()
        }
        for name, values in estimate.items():
            torch.neg(values, out=self.correction[name])  # the outcome adds its anchor
        return estimate

    def forget(self) -> None:
        """Drop this island's own error and correction."""
        for values in (*(self.error or {}).values(), *(self.correction or {}).values()):
            values.zero_()

    def pieces(self) -> tuple[FlatSlice, ...]:
        """Return the pieces this rank owns, as reported to other islands."""
        return tuple(
            FlatSlice(name, each.part.global_shape, each.part.offset, each.part.shape, each.start, each.stop)
            for name, each in self.owned.items()
        )

    def saved(self) -> dict[str, TensorPiece]:
        """Return the tensors of this state by their names in a checkpoint."""
        kinds = {"anchor": self.anchor, "momentum": self.momentum, "error": self.error, "correction": self.correction}
        return {
            f"{kind}/{name}": TensorPiece(piece, self.owned[name].part, self.owned[name].start, self.owned[name].stop)
            for kind, values in kinds.items()
            for name, piece in (values or {}).items()
        }

    def views(self, values: Mapping[str, Tensor], cells: Iterable[Cell]) -> Iterator[Tensor]:
        """Yield a view of each cell in `values`, in the cell's shape."""
        for cell in cells:
            shard = self.owned[cell.name]
            piece = TensorPiece(values[cell.name], shard.part, shard.start, shard.stop)
            yield next(view for chunk, box in piece.chunks() if (view := _within(chunk.offsets, box, cell)) is not None)

    def gather(self, values: Mapping[str, Tensor], cells: Iterable[Cell]) -> Tensor:
        """Return the numbers of all cells in order, fp32 (elements,)."""
        return torch.cat([view.reshape(-1) for view in self.views(values, cells)])

    def scatter(self, numbers: Tensor, values: Mapping[str, Tensor], cells: Iterable[Cell]) -> None:
        """Write `numbers`, fp32 (elements,), to the cells in `values`."""
        first = 0
        for view in self.views(values, cells):
            view.copy_(numbers[first : first + view.numel()].view(view.shape))
            first += view.numel()


def _within(first: Iterable[int], box: Tensor, cell: Cell) -> Tensor | None:
    """Return the cell as a view of `box`, which begins at `first`; None if the cell is not inside."""
    begins = [offset - start for offset, start in zip(cell.offsets, first, strict=True)]
    if any(
        begin < 0 or begin + size > length for begin, size, length in zip(begins, cell.sizes, box.shape, strict=True)
    ):
        return None
    return box[tuple(slice(begin, begin + size) for begin, size in zip(begins, cell.sizes, strict=True))]
