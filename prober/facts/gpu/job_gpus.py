"""GPUs that the job does not use: GPUs that hosts.yaml leaves out, or else display cards and much smaller GPUs."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from holmes_core.records.devices import Gpu

NOT_STATED = "not among `gpus:` of hosts.yaml"
DISPLAY = "a display card"
SMALL_SHARE = 1 / 4  # of the largest GPU's memory: the smallest limits the model, and others would wait for it
_DISPLAY_NAME = re.compile(r"\bDisplay\b|\bNVS\b|\bT[46]00\b|\bT1000\b|\bGT \d{3,4}\b|\bQuadro [KMP]\d{3}\b")


def with_left_out(gpus: Sequence[Gpu], stated: Collection[int] | None) -> tuple[Gpu, ...]:
    """Return the GPUs, with the reason for each that the job leaves out. `stated`: `gpus:` of hosts.yaml."""
    return tuple(gpu.model_copy(update={"left_out": _reason(gpu, gpus, stated)}) for gpu in gpus)


def _reason(gpu: Gpu, gpus: Sequence[Gpu], stated: Collection[int] | None) -> str | None:
    if stated is not None:
        return None if gpu.index in stated else NOT_STATED
    others = [other for other in gpus if other.name != gpu.name and not _is_display(other)]
    if others and _is_display(gpu):
        return DISPLAY
    largest = max(others, key=lambda other: other.memory_bytes or 0, default=gpu)
    if gpu.memory_bytes is not None and gpu.memory_bytes < SMALL_SHARE * (largest.memory_bytes or 0):
        return f"it has less than a quarter of the memory of {largest.name or 'the others'}"
    return None


def _is_display(gpu: Gpu) -> bool:
    return bool(_DISPLAY_NAME.search(gpu.name or ""))
