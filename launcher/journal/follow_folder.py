"""A run as its folder tells it, for those who look at it from another process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from launcher.journal.run_events import LogLine, RunEvent, from_line
from launcher.journal.run_folder import EVENTS_FILE, LOGS, PLAN_FILE, read_run

POLL_S = 0.2


class _Lines:
    """New whole lines of a growing file."""

    def __init__(self, path: Path, from_end: bool) -> None:
        self._file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115
        self._rest = ""
        if from_end:
            self._file.seek(0, 2)

    def new(self) -> Iterator[str]:
        """Those that have come since the last time."""
        *whole, self._rest = (self._rest + self._file.read()).split("\n")
        yield from whole


def log_lines(folder: Path, rank: int | None) -> Iterator[LogLine]:
    """What the ranks (or the one) printed so far, rank by rank."""
    for path in _logs(folder, rank):
        for line in _Lines(path, from_end=False).new():
            yield _log_line(path, line)


def follow_logs(folder: Path, rank: int | None) -> Iterator[LogLine]:
    """What the ranks (or the one) print from now on, until the run has ended."""
    files = {path: _Lines(path, from_end=True) for path in _logs(folder, rank)}
    while True:
        over = read_run(folder).state != "running"
        for path in _logs(folder, rank):
            lines = files.setdefault(path, _Lines(path, from_end=False))
            for line in lines.new():
                yield _log_line(path, line)
        if over:
            return
        time.sleep(POLL_S)


def follow_events(folder: Path) -> Iterator[RunEvent]:
    """Every event so far, then events and log lines as they come, until the run has ended."""
    events = _Lines(folder / EVENTS_FILE, from_end=False)
    logs = {path: _Lines(path, from_end=True) for path in _logs(folder, None)}
    while True:
        over = read_run(folder).state != "running"
        yield from (from_line(line) for line in events.new())
        for path in _logs(folder, None):
            for line in logs.setdefault(path, _Lines(path, from_end=False)).new():
                yield _log_line(path, line)
        if over:
            return
        time.sleep(POLL_S)


def past_events(folder: Path) -> list[RunEvent]:
    """Every event so far."""
    return [from_line(line) for line in _Lines(folder / EVENTS_FILE, from_end=False).new()]


def read_plan(folder: Path) -> Plan:
    """The plan of the run's last attempt. Raises HolmesError."""
    return read_file(Plan, folder / PLAN_FILE)


def _logs(folder: Path, rank: int | None) -> list[Path]:
    """The logs by rank. They are named HOST-rankN.log."""
    files = sorted((folder / LOGS).glob("*-rank*.log"), key=_rank_of)
    return [path for path in files if rank is None or _rank_of(path) == rank]


def _rank_of(path: Path) -> int:
    return int(path.stem.rpartition("-rank")[2])


def _log_line(path: Path, line: str) -> LogLine:
    return LogLine(path.stem.rpartition("-rank")[0], "", _rank_of(path), line)
