"""A copy of a rank's state, made during training in host memory that is reused for every checkpoint.

A saved state stays unchanged until the next update, so only that update waits for the copy.
Source: Maurya et al., DataStates-LLM, 2024.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event

import torch
from torch import Tensor

from holmes_runtime.checkpoint.tensor_piece import Chunk, TensorPiece
from holmes_runtime.parallel.host_states import host_memory

VALUE_BYTES = 4  # the states are fp32


@dataclass(frozen=True)
class PieceCopy(TensorPiece):
    """A piece in host memory. `boxes[i]` is its ith box as a separate tensor, else torch would copy it again."""

    boxes: tuple[Tensor, ...]

    def chunks(self) -> list[tuple[Chunk, Tensor]]:
        """Return the boxes as any piece does."""
        found = zip(super().chunks(), self.boxes, strict=True)
        return [(chunk, box.view(chunk.sizes)) for (chunk, _), box in found]


class Snapshot:
    """Host memory that the first copy allocates and later ones overwrite. It is pinned if the state is on a GPU.

    The training thread calls `start`, and `await_copy` before it changes the state. Another thread calls `finish`.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._stream: torch.cuda.Stream | None = None
        self._arrival: torch.cuda.Event | None = None
        self._pieces: Mapping[str, TensorPiece] = {}
        self._is_copied = Event()
        self._is_copied.set()

    def start(self, pieces: Mapping[str, TensorPiece]) -> None:
        """Start to copy the values of `pieces`, which are always the same ones; on a GPU, after all work queued so far.

        Values that are already in host memory, such as offloaded states, are left to `finish`.
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
        """Return the pieces with copies of their values, fp32, once all have arrived."""
        try:
            self._copy(of_gpu=False)
        finally:
            self._is_copied.set()
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._copies()

    def await_copy(self) -> None:
        """Make this thread's next changes of the state wait for the copy. For values on a GPU only its stream waits."""
        if self._arrival is not None:
            torch.cuda.current_stream().wait_event(self._arrival)
        self._is_copied.wait()

    def _copy(self, of_gpu: bool) -> None:
        for piece, copy in zip(self._pieces.values(), self._copies().values(), strict=True):
            if piece.values.is_cuda == of_gpu:
                copy.values.copy_(piece.values, non_blocking=True)

    def _copies(self) -> dict[str, TensorPiece]:
        """Return the pieces as stored in memory."""
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
    """Return fp32 (count,) from the `first` value on. Its storage is only that range of memory."""
    return torch.frombuffer(memory, dtype=torch.float32, count=count, offset=first * VALUE_BYTES)
