"""The facts that one source gives of a GPU."""

from __future__ import annotations

from holmes_core.records.devices import Gpu


class PartialGpu(Gpu):
    """A GPU as one source shows it: all but the index may be unknown."""

    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    pci_address: str | None = None
