"""The facts of one source about a GPU."""

from __future__ import annotations

from holmes_core.records.devices import Gpu


class PartialGpu(Gpu):
    """A GPU as one source shows it. Only the index is always known."""

    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    pci_address: str | None = None
