"""GPUs, from nvidia-smi."""

from __future__ import annotations

import csv

from holmes_core.inventory import Gpu
from holmes_core.units import MIB
from prober.facts.question import Command, Output

_FIELDS = ("index", "name", "uuid", "memory.total", "pci.bus_id")

QUERY = Command("nvidia-smi", f"nvidia-smi --query-gpu={','.join(_FIELDS)} --format=csv,noheader,nounits")


def parse_query(output: Output) -> tuple[Gpu, ...]:
    """The GPUs of a `--query-gpu` answer; lines that are no such row (warnings, a cut end) are left out."""
    gpus = []
    for row in csv.reader(output.text.splitlines(), skipinitialspace=True):
        if len(row) == len(_FIELDS) and row[0].isdecimal():
            gpus.append(_gpu(row))
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _gpu(row: list[str]) -> Gpu:
    index, name, uuid, memory_mib, pci_address = (cell.strip() for cell in row)
    return Gpu(
        index=int(index),
        name=name,
        uuid=_known(uuid),
        memory_bytes=int(memory_mib) * MIB if memory_mib.isdecimal() else None,
        pci_address=_known(pci_address),
    )


def _known(cell: str) -> str | None:
    return None if cell.startswith("[") or not cell else cell
