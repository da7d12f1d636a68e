"""GPUs of a host in several snapshots of nvidia-smi. Source: nvidia-smi(1), nvml.h (reasons)."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MAX_GPUS = 64
_NUM_FIELDS = 7
# Bits of reasons for a low clock that are faults. The power cap is none.
FAULT_REASONS = {
    0x08: "HW slowdown",
    0x20: "SW thermal slowdown",
    0x40: "HW thermal slowdown",
    0x80: "HW power brake",
}


@dataclass(frozen=True)
class WatchedGpu:
    """A GPU in all snapshots. `reasons` has a bit for each reason of a low clock, by snapshot."""

    index: int
    uuid: str
    utilisations: tuple[float, ...]
    clocks_mhz: tuple[float, ...]
    max_clock_mhz: float | None
    ecc_errors: tuple[int, ...]
    reasons: tuple[int, ...]

    @property
    def utilisation(self) -> float | None:
        """The mean share of time with a kernel, 0 to 1."""
        return statistics.fmean(self.utilisations) / 100 if self.utilisations else None

    @property
    def clock_mhz(self) -> float | None:
        """The median clock."""
        return statistics.median(self.clocks_mhz) if self.clocks_mhz else None

    def slowed_by(self) -> tuple[str, ...]:
        """Return the faults that lower its clock in most snapshots."""
        return tuple(
            name
            for bit, name in FAULT_REASONS.items()
            if 2 * sum(bool(each & bit) for each in self.reasons) > len(self.reasons)
        )


def parse_gpus(texts: Sequence[str]) -> tuple[WatchedGpu, ...]:
    """Return the GPUs in the snapshots, without rows of another form."""
    rows: dict[tuple[int, str], list[list[str]]] = {}
    for text in texts:
        for line in text.splitlines()[: 2 * MAX_GPUS]:
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) == _NUM_FIELDS and re.fullmatch(r"\d{1,3}", cells[0]) and len(rows) < MAX_GPUS:
                rows.setdefault((int(cells[0]), cells[1]), []).append(cells)
    return tuple(_gpu(index, uuid, seen) for (index, uuid), seen in sorted(rows.items()))


def _gpu(index: int, uuid: str, rows: Sequence[Sequence[str]]) -> WatchedGpu:
    def numbers(column: int) -> tuple[float, ...]:
        return tuple(float(row[column]) for row in rows if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", row[column]))

    return WatchedGpu(
        index=index,
        uuid=uuid,
        utilisations=tuple(value for value in numbers(2) if value <= 100),
        clocks_mhz=numbers(3),
        max_clock_mhz=max(numbers(4), default=None),
        ecc_errors=tuple(int(value) for value in numbers(5)),
        reasons=tuple(int(row[6], 16) for row in rows if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", row[6])),
    )


def parse_gpu_processes(text: str) -> dict[int, set[str]]:
    """Return the UUIDs of the GPUs of each process that computes."""
    holders: dict[int, set[str]] = {}
    for line in text.splitlines()[:4096]:
        uuid, _, pid = (part.strip() for part in line.partition(","))
        if re.fullmatch(r"\d{1,10}", pid) and uuid.startswith(("GPU-", "MIG-")):
            holders.setdefault(int(pid), set()).add(uuid)
    return holders
