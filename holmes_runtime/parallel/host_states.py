"""Optimizer states in host memory, and their transfers to and from the device through pinned memory.

A gradient is copied on its own stream while others are still being reduced. New weights are copied while AdamW updates
the next bucket. On CPUs, host memory is the device's memory, and copies are complete when they return.
Source: Ren et al., ZeRO-Offload, 2021.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

PORTABLE = 1  # cudaHostRegisterPortable: pinned for the whole process


def host_memory(size_bytes: int, pinned: bool) -> mmap.mmap:
    """Return memory, pinned by registration. torch's pinned allocator would round its size up to a power of two."""
    memory = mmap.mmap(-1, max(1, size_bytes))
    if pinned:
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        failed = int(runtime.cudaHostRegister(address, len(memory), PORTABLE))
        if failed:
            print(f"{size_bytes} bytes of host memory could not be pinned (CUDA error {failed}): copies take longer")
    return memory


class HostMemory:
    """Host memory for `device`, and the stream on which gradients are copied to it (none on CPUs)."""

    def __init__(self, device: torch.device) -> None:
        self.is_gpu = device.type == "cuda"

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return host memory (elements,), pinned if a GPU copies to or from it."""
        return torch.frombuffer(host_memory(elements * dtype.itemsize, self.is_gpu), dtype=dtype, count=elements)

    def start(self, source: Tensor, target: Tensor) -> Callable[[], None]:
        """Start to copy `source` to `target` in host memory, after all work queued on the device.

        The result waits for the copy. Until then, `source` must not be written to.
        """
        if not self.is_gpu:
            target.copy_(source)
            return lambda: None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            arrived: torch.cuda.Event = self._stream.record_event()
        return arrived.synchronize


class HostPart:
    """This rank's part of one bucket in host memory.

    master and gradient: fp32 (elements / dp,); weights: (elements / dp,) as on the device; in fp32 they are the master.
    """

    def __init__(self, weights: Tensor, memory: HostMemory) -> None:
        """`weights` (elements / dp,) are this rank's on the device."""
        self._memory = memory
        self._arrival: Callable[[], None] | None = None
        self.master = memory.empty(len(weights), torch.float32).copy_(weights)
        self.gradient = memory.empty(len(weights), torch.float32).zero_()
        is_wide = weights.dtype == torch.float32
        self._weights = self.master if is_wide else memory.empty(len(weights), weights.dtype)

    def fetch(self, gradient: Tensor) -> None:
        """Start to copy the device's `gradient` here."""
        self._arrival = self._memory.start(gradient, self.gradient)

    def wait(self) -> None:
        """Wait until the gradient has arrived, if it is under way."""
        if self._arrival is not None:
            self._arrival()
            self._arrival = None

    def publish(self, weights: Tensor) -> None:
        """Start to copy the master to the device's `weights`, in their precision."""
        if self._weights is not self.master:
            self._weights.copy_(self.master)
        weights.copy_(self._weights, non_blocking=True)
