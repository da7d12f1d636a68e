"""Reading a run from its folder in another process."""

from __future__ import annotations

import contextlib
import heapq
import os
import re
import time
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.records.record_file import read_file
from holmes_core.records.regular_file import is_there
from launcher.journal.bounded_log import PART_BYTES, part_before
from launcher.journal.log_time import WrittenLine, split_stamp
from launcher.journal.read_folder import open_in, reading
from launcher.journal.run_events import LogLine, Notice, RunEvent, WrittenEvent, from_line
from launcher.journal.run_folder import EVENTS_FILE, LOGS, PLAN_FILE, island_folders, read_run
from launcher.journal.run_store import StoredRun
from launcher.journal.step_file import METRICS_FILE

POLL_S = 0.2
LINE_CHARACTERS = 1 << 20
MAX_LOG_CHARACTERS = 1 << 16  # shown of a log line; the file has all of it
MAX_BYTES = 2 * PART_BYTES  # of a log or the events: one line may exceed a part
_NAME = re.compile(r".+-rank[0-9]{1,9}")


class _Lines:
    """The new whole lines of a growing file."""

    def __init__(self, folder: Path, path: Path, from_end: bool = False, is_thinned: bool = False) -> None:
        """Open the file. If `is_thinned`, a replaced file is the same file with fewer earlier lines, not the next part.

        Raises HolmesError if it is not a file of the run folder.
        """
        self._folder, self.path, self._is_thinned = folder, path, is_thinned
        self._rest = self._last = ""
        self._open()
        if from_end:
            self._file.seek(0, 2)

    def new(self) -> Iterator[str]:
        """Yield the lines since the last call. A line longer than any that Holmes writes is cut.

        A log that has become the previous part is read to its end first.
        """
        yield from self._read()
        if self._is_replaced():
            yield from self._read()
            self._file.close()
            self._open()
            yield from self._unseen() if self._is_thinned and self._last else self._read()

    def _is_replaced(self) -> bool:
        with reading(self.path), contextlib.suppress(FileNotFoundError):
            return self.path.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        return False

    def _open(self) -> None:
        self._file = TextIOWrapper(open_in(self._folder, self.path, MAX_BYTES), encoding="utf-8", errors="replace")

    def _unseen(self) -> Iterator[str]:
        """Yield the lines after the last one seen. That line is still there: only earlier ones are thinned out."""
        last, lines = self._last, self._read()
        for line in lines:
            if line == last:
                break
        yield from lines

    def _read(self) -> Iterator[str]:
        while True:
            with reading(self.path):
                chunk = self._file.read(LINE_CHARACTERS)
            if not chunk:
                return
            *whole, self._rest = (self._rest + chunk).split("\n")
            if len(self._rest) > LINE_CHARACTERS:
                whole, self._rest = [*whole, self._rest], ""
            for line in whole:
                self._last = line
                yield line


def log_lines(folder: Path, rank: int | None) -> Iterator[WrittenLine]:
    """Yield the lines that all ranks (or the given one) printed, rank by rank, as far back as they are kept."""
    for path in _logs(folder, rank):
        for part in (part_before(path), path):
            if is_there(part):
                for line in _Lines(folder, part).new():
                    yield _log_line(path, line)


def follow_logs(folder: Path, rank: int | None) -> Iterator[tuple[int, WrittenLine]]:
    """Yield each new line of all ranks (or the given one) with its island's number, until the run ends.

    The number is 0 in an ordinary run.
    """
    logs = [_NewLines(part, rank) for part in island_folders(folder) or (folder,)]
    while True:
        over = not StoredRun(folder, read_run(folder)).goes_on
        for number, lines in enumerate(logs):
            for line in lines.new():
                yield number, line
        if over:
            return
        time.sleep(POLL_S)


def follow_events(folder: Path) -> Iterator[tuple[int, RunEvent]]:
    """Yield all earlier events, then new events and log lines as they come, numbered as by `follow_logs`."""
    parts = island_folders(folder) or (folder,)
    before = [(number, part) for number, part in enumerate(parts) if is_there(part_before(part / EVENTS_FILE))]
    past = [(number, _Lines(part, part_before(part / EVENTS_FILE))) for number, part in before]
    files = [(number, _Lines(part, part / EVENTS_FILE)) for number, part in enumerate(parts)]
    files += [(number, _Lines(part, part / METRICS_FILE, is_thinned=True)) for number, part in enumerate(parts)]
    logs = [_NewLines(part, None) for part in parts]
    while True:
        over = not StoredRun(folder, read_run(folder)).goes_on
        new = (_numbered_events(number, lines) for number, lines in (*past, *files))
        for number, written in heapq.merge(*new, key=lambda each: each[1].time_s):
            yield number, written.event
        past = []
        for number, printed in enumerate(logs):
            for line in printed.new():
                yield number, line.event
        if over:
            return
        time.sleep(POLL_S)


class _NewLines:
    """The new lines of ranks. Logs that are created later are read from their beginning."""

    def __init__(self, folder: Path, rank: int | None) -> None:
        self._folder, self._rank = folder, rank
        self._files = {path: _Lines(folder, path, from_end=True) for path in _logs(folder, rank)}

    def new(self) -> Iterator[WrittenLine]:
        """Yield the lines since the last call."""
        for path in _logs(self._folder, self._rank):
            for line in self._files.setdefault(path, _Lines(self._folder, path)).new():
                yield _log_line(path, line)


def _numbered_events(number: int, lines: _Lines) -> Iterator[tuple[int, WrittenEvent]]:
    for written in _read_events(lines):
        yield number, written


def past_events(folder: Path) -> Iterator[WrittenEvent]:
    """Yield the stored events except steps, which `step_file` reads."""
    newest = folder / EVENTS_FILE
    for part in (part_before(newest), newest):
        if part == newest or is_there(part):
            yield from _read_events(_Lines(folder, part))


def past_notices(folder: Path) -> Iterator[tuple[float, str]]:
    """Yield the stored notices, each with its Unix time."""
    for time_s, event in past_events(folder):
        if isinstance(event, Notice):
            yield time_s, event.text


def _read_events(lines: _Lines) -> Iterator[WrittenEvent]:
    for line in lines.new():
        with reading(lines.path):
            written = from_line(line)
        yield written


def read_plan(folder: Path) -> Plan:
    """Return the plan of the run's last attempt. Raises HolmesError."""
    return read_file(Plan, folder / PLAN_FILE, inside=folder)


def read_islands_plan(folder: Path) -> IslandsPlan:
    """Return the plan of a run of islands. Raises HolmesError."""
    return read_file(IslandsPlan, folder / PLAN_FILE, inside=folder)


def _logs(folder: Path, rank: int | None) -> list[Path]:
    """Return the logs in rank order. Their names are HOST-rankN.log."""
    with reading(folder / LOGS):
        files = [path for path in (folder / LOGS).glob("*.log") if _NAME.fullmatch(path.stem)]
    return [path for path in sorted(files, key=_rank_of) if rank is None or _rank_of(path) == rank]


def _rank_of(path: Path) -> int:
    return int(path.stem.rpartition("-rank")[2])


def _log_line(path: Path, line: str) -> WrittenLine:
    when, text = split_stamp(line)
    if len(text) > MAX_LOG_CHARACTERS:
        text = f"{text[:MAX_LOG_CHARACTERS]}... ({len(text) - MAX_LOG_CHARACTERS} characters more)"
    return WrittenLine(when, LogLine(path.stem.rpartition("-rank")[0], "", _rank_of(path), text))
