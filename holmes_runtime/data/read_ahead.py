"""The reader of the next step's batch while the step before it computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from holmes_runtime.data.host_copies import to_device

READING = "reading"  # the lap in which a step waits for its batch


class Batch(NamedTuple):
    """A rank's samples of a step, int64: tokens (samples, seq_length + 1) and positions (samples, seq_length).

    `weight` is the factor on the mean loss of each micro-batch's targets: see `Samples.target_weight`.
    """

    tokens: Tensor | None
    positions: Tensor | None
    weight: float = 1.0

    def pinned(self) -> Batch:
        """Return the same in memory that a GPU can copy from by itself."""
        return self._with(lambda values: values.pin_memory())

    def on(self, device: torch.device) -> Batch:
        """Return the same on `device`."""
        return self._with(lambda values: to_device(values, device))

    def _with(self, change: Callable[[Tensor], Tensor]) -> Batch:
        tokens, positions = (None if values is None else change(values) for values in self[:2])
        return self._replace(tokens=tokens, positions=positions)


class BatchesAhead:
    """The batches of a run's steps on one rank, one read ahead in a thread.

    A batch depends on its step alone, so a run that is resumed, or takes steps out of order, reads the same.
    """

    def __init__(self, read: Callable[[int], Batch], num_steps: int, host: str, device: torch.device) -> None:
        """`read` gives the batch of a step of `num_steps`, in host memory; errors name `host`."""
        self._read, self._num_steps, self._host, self._device = read, num_steps, host, device
        self._reader = ThreadPoolExecutor(1, "reader")
        self._ahead: dict[int, Future[Batch]] = {}

    def take(self, step: int) -> Batch:
        """Return the batch of `step` on the device. Raise RuntimeError naming step and host if it cannot be read."""
        batch = self._ahead.pop(step, None) or self._start(step)
        self._ahead = {step + 1: self._start(step + 1)} if step + 1 < self._num_steps else {}
        try:
            return batch.result().on(self._device)
        except (OSError, ValueError) as error:
            raise RuntimeError(f"step {step}, host {self._host}: {error}") from error

    def _start(self, step: int) -> Future[Batch]:
        return self._reader.submit(self._pinned, step)

    def _pinned(self, step: int) -> Batch:
        batch = self._read(step)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # of this thread, which else would open the first GPU
            batch = batch.pinned()
        return batch
