"""Read the batch of the next step while the current step computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from holmes_runtime.data.host_copies import to_device
from holmes_runtime.parallel.batch import Batch

READING = "reading"  # the lap in which a step waits for its batch


class BatchesAhead:
    """The batches of a run's steps on one rank. A thread reads one batch ahead.

    A batch depends only on its step, so a run that is resumed or takes steps out of order reads the same.
    """

    def __init__(self, read: Callable[[int], Batch], num_steps: int, host: str, device: torch.device) -> None:
        """`read` returns the batch of a step of `num_steps`, in host memory. Errors name `host`."""
        self._read, self._num_steps, self._host, self._device = read, num_steps, host, device
        self._reader = ThreadPoolExecutor(1, "reader")
        self._ahead: dict[int, Future[Batch]] = {}

    def take(self, step: int) -> Batch:
        """Return the batch of `step` on the device. Raises RuntimeError naming step and host if it cannot be read."""
        batch = self._ahead.pop(step, None) or self._start(step)
        self._ahead = {step + 1: self._start(step + 1)} if step + 1 < self._num_steps else {}
        try:
            return batch.result().with_tensors(lambda values: to_device(values, self._device))
        except (OSError, ValueError) as error:
            raise RuntimeError(f"step {step}, host {self._host}: {error}") from error

    def _start(self, step: int) -> Future[Batch]:
        return self._reader.submit(self._pinned, step)

    def _pinned(self, step: int) -> Batch:
        batch = self._read(step)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # for this thread, which would otherwise open the first GPU
            batch = batch.pinned()
        return batch
