"""A rank's state copied to host memory that is kept from one checkpoint to the next."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from holmes_runtime.checkpoint.reshard import TensorPiece
from holmes_runtime.parallel.host_states import host_memory

VALUE_BYTES = 4  # the states are fp32


@dataclass(frozen=True)
class PieceCopy(TensorPiece):
    """A piece in host memory; `boxes[i]` is its ith box as a tensor of its own, else torch copies it once more."""

    boxes: tuple[Tensor, ...]

    def chunks(self) -> list[tuple[ChunkStorageMetadata, Tensor]]:
        """As of any piece."""
        found = zip(super().chunks(), self.boxes, strict=True)
        return [(chunk, box.view(chunk.sizes)) for (chunk, _), box in found]


class Snapshot:
    """Host memory, made at the first copy, which the next ones overwrite; pinned where the state is on a GPU."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def take(self, pieces: Mapping[str, TensorPiece]) -> dict[str, TensorPiece]:
        """The same pieces with copies of their values, fp32; always of the same pieces."""
        on_gpu = any(piece.values.is_cuda for piece in pieces.values())
        if self._memory is None:
            self._memory = host_memory(sum(piece.values.nbytes for piece in pieces.values()), pinned=on_gpu)
        copies: dict[str, TensorPiece] = {}
        first = 0  # of the values in memory
        for name, piece in pieces.items():
            values = _tensor(self._memory, first, piece.values.numel()).copy_(piece.values, non_blocking=True)
            boxes = []
            for _, box in piece.chunks():
                boxes.append(_tensor(self._memory, first, box.numel()))
                first += box.numel()
            copies[name] = PieceCopy(values, piece.part, piece.start, piece.stop, tuple(boxes))
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return copies


def _tensor(memory: mmap.mmap, first: int, count: int) -> Tensor:
    """fp32 (count,) from the `first` value on, whose storage is that and no more."""
    return torch.frombuffer(memory, dtype=torch.float32, count=count, offset=first * VALUE_BYTES)
