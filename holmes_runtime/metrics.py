"""One JSON line per step and rank."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from holmes_runtime.comm import InterfaceBytes


@dataclass(frozen=True)
class StepMetrics:
    """What one rank saw of one step.

    loss: mean over the global batch, None but on the last stage. grad_norm: global norm before clipping. step_s: time
    from the end of the previous step to the end of this one. tokens_per_s: of the whole run. interfaces: increase of
    this host's counters, on local rank 0 only; bytes still in flight when a step ends count to the next.
    """

    step: int
    rank: int
    loss: float | None
    grad_norm: float
    step_s: float
    tokens_per_s: float
    interfaces: dict[str, InterfaceBytes]


class MetricsFile:
    """Appends to `metrics-rank<k>.jsonl` in a folder, flushing each line. Made if the folder is missing."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"metrics-rank{rank}.jsonl").open("a", encoding="utf-8")

    def write(self, metrics: StepMetrics) -> None:
        """Appends one line. Raises ValueError for a number JSON does not have."""
        self._file.write(json.dumps(asdict(metrics), allow_nan=False) + "\n")
        self._file.flush()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def counters_increase(before: dict[str, InterfaceBytes], after: dict[str, InterfaceBytes]) -> dict[str, InterfaceBytes]:
    """Per interface, the increase between two readings; interfaces that came or went meanwhile are left out."""
    return {name: reading.since(before[name]) for name, reading in after.items() if name in before}
