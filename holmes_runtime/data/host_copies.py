"""Copies between host and device without waits on either side. On a CPU they are the tensors themselves."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return `values` from host memory on `device`. They arrive before operations started after this call."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


class HostCopy:
    """A tensor's current values on their way to the host, while the device continues with later work."""

    def __init__(self, values: Tensor) -> None:
        self._values = values.to("cpu", non_blocking=True)  # from a GPU torch copies into pinned memory
        self._arrived = torch.cuda.Event() if values.is_cuda else None  # type: ignore[no-untyped-call]
        if self._arrived is not None:
            self._arrived.record()

    def wait(self) -> list[float]:
        """Return the values (n,) once they have arrived, without waiting for later work of the device."""
        if self._arrived is not None:
            self._arrived.synchronize()
        numbers: list[float] = self._values.tolist()
        return numbers
