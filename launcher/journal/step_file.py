"""metrics.jsonl: one step per line. In a long run earlier steps are thinned out, so that the file covers all of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from holmes_core.records.plain_data import json_values
from holmes_core.records.record_file import private_opener
from holmes_core.records.regular_file import MIB, is_there
from holmes_runtime.config.strict_json import decode
from launcher.journal.bounded_log import append, open_to_append
from launcher.journal.read_folder import open_in, read_in, reading
from launcher.journal.run_events import MAX_STEPS, from_line, to_line
from launcher.journal.step_metrics import StepMetrics

METRICS_FILE = "metrics.jsonl"
MAX_BYTES = 32 * MIB  # holds 20,000 steps of 4 hosts, and is read in seconds
LONGEST_LINE = 4 * MIB  # of a step, with one entry for each interface of each host
_NOT_EVALUATED = '"eval_loss": null'


class StepFile:
    """Appends steps, each one immediately. At `most_bytes`, every other step of the first half is dropped."""

    def __init__(self, folder: Path, most_bytes: int = MAX_BYTES) -> None:
        self._path, self._most_bytes = folder / METRICS_FILE, most_bytes
        self._open()

    def write(self, step: StepMetrics) -> None:
        """Append a step with the current time."""
        append(self._file, f"{to_line(step)}\n".encode())
        if self._file.tell() > self._most_bytes:
            with contextlib.suppress(OSError):  # the disk is full: try again later
                self._thin_out()

    def close(self) -> None:
        self._file.close()

    def _open(self) -> None:
        self._file = open_to_append(self._path)

    def _thin_out(self) -> None:
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        half = len(lines) // 2
        temporary = self._path.with_suffix(".partial")
        with open(temporary, "w", encoding="utf-8", opener=private_opener) as file:
            file.writelines(_every_other(lines[:half]))
            file.writelines(lines[half:])
        temporary.replace(self._path)
        self._file.close()
        self._open()


def _every_other(lines: Iterable[str]) -> Iterator[str]:
    """Yield every other line. Steps with and without evaluation are counted apart, as only every tenth may have one."""
    counts = {True: 0, False: 0}
    for line in lines:
        is_evaluated = _NOT_EVALUATED not in line
        if counts[is_evaluated] % 2 == 0:
            yield line
        counts[is_evaluated] += 1


class WrittenStep(NamedTuple):
    """A step, and the Unix time at which it was written."""

    time_s: float
    step: StepMetrics


def read_steps(folder: Path, most: int) -> list[StepMetrics]:
    """Return at most `most` steps in order, evenly spaced, including the first and last. Raises HolmesError."""
    return [written.step for written in read_written(folder, most)]


def read_written(folder: Path, most: int) -> list[WrittenStep]:
    """Return the steps of `read_steps`, each with its time."""
    path = folder / METRICS_FILE
    text = read_in(folder, path, 2 * MAX_BYTES)
    if text is None:
        return []
    *lines, _ = text.split(b"\n")
    last = len(lines) - 1
    chosen = range(len(lines)) if last < most else sorted({last * index // (most - 1) for index in range(most)})
    with reading(path):
        found = [from_line(lines[index].decode("utf-8")) for index in chosen]
    written = (WrittenStep(each.time_s, each.event) for each in found if isinstance(each.event, StepMetrics))
    steps = {each.step.step: each for each in written}
    return [steps[number] for number in sorted(steps)]


def last_step(folder: Path) -> int | None:
    """Return the number of the last stored step, None if there is none. Raises HolmesError."""
    path = folder / METRICS_FILE
    if not is_there(path):
        return None
    with open_in(folder, path, 2 * MAX_BYTES) as file, reading(path):
        file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE))
        last = file.read(LONGEST_LINE).rpartition(b"\n")[0].rpartition(b"\n")[2]
        if not last:
            return None
        step: int = decode(int, json_values(last.decode("utf-8"))["step"], "step")
    return step if 0 <= step < MAX_STEPS else None
