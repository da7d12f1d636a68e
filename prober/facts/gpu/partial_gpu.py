"""What one source says of a GPU."""

from __future__ import annotations

from holmes_core.records.devices import Gpu


class PartialGpu(Gpu):
    """A GPU of which all but the index may be unknown; every source leaves out what it does not say."""

    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    pci_address: str | None = None
