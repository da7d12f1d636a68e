"""A rank's state copied to host memory that is kept from one checkpoint to the next, while training goes on.

A state is as it was saved until its next update, so nothing but that update waits for the copy.
Source: Maurya et al., DataStates-LLM, 2024.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event

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
    """Host memory, made at the first copy, which the next ones overwrite; pinned where the state is on a GPU.

    The thread that trains calls `start`, and `await_copy` before it changes what is copied; another one calls `finish`.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._stream: torch.cuda.Stream | None = None
        self._arrival: torch.cuda.Event | None = None
        self._pieces: Mapping[str, TensorPiece] = {}
        self._is_copied = Event()
        self._is_copied.set()

    def start(self, pieces: Mapping[str, TensorPiece]) -> None:
        """Begins to copy the values of `pieces`, always the same ones; those on a GPU behind all that was asked of it.

        What is in host memory already, such as states that were moved there, is left to `finish`.
        """
        self._is_copied.clear()
        self._pieces = pieces
        on_gpu = any(piece.values.is_cuda for piece in pieces.values())
        if self._memory is None:
            self._memory = host_memory(sum(piece.values.nbytes for piece in pieces.values()), pinned=on_gpu)
        if on_gpu:
            self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._copy(of_gpu=True)
                self._arrival = self._stream.record_event()

    def finish(self) -> dict[str, TensorPiece]:
        """The pieces with copies of their values, fp32, once all are there."""
        try:
            self._copy(of_gpu=False)
        finally:
            self._is_copied.set()
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._copies()

    def await_copy(self) -> None:
        """Has what this thread does next to the state come after the copy; of what is on a GPU that alone waits."""
        if self._arrival is not None:
            torch.cuda.current_stream().wait_event(self._arrival)
        self._is_copied.wait()

    def _copy(self, of_gpu: bool) -> None:
        for piece, copy in zip(self._pieces.values(), self._copies().values(), strict=True):
            if piece.values.is_cuda == of_gpu:
                copy.values.copy_(piece.values, non_blocking=True)

    def _copies(self) -> dict[str, TensorPiece]:
        """The pieces as they lie in memory."""
        assert self._memory is not None
        copies: dict[str, TensorPiece] = {}
        first = 0  # of the values in memory
        for name, piece in self._pieces.items():
            values = _tensor(self._memory, first, piece.values.numel())
            boxes = []
            for _, box in piece.chunks():
                boxes.append(_tensor(self._memory, first, box.numel()))
                first += box.numel()
            copies[name] = PieceCopy(values, piece.part, piece.start, piece.stop, tuple(boxes))
        return copies


def _tensor(memory: mmap.mmap, first: int, count: int) -> Tensor:
    """fp32 (count,) from the `first` value on, whose storage is that and no more."""
    return torch.frombuffer(memory, dtype=torch.float32, count=count, offset=first * VALUE_BYTES)
