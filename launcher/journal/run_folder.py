"""The run folder on the controller: plan, record, steps, events, and one log per rank."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.islands import ISLAND
from holmes_core.records.plain_data import json_values
from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.records.record import FileRecord
from holmes_core.records.record_file import private_opener, read_file, read_signed, write_atomically, write_signed
from holmes_core.records.regular_file import MIB, is_there
from holmes_core.records.run import Run
from launcher.journal.bounded_log import BoundedLog
from launcher.journal.log_time import stamped
from launcher.journal.rank_files import FilePart, write_part
from launcher.journal.read_folder import read_in, reading
from launcher.journal.run_events import LogLine, RunEvent, to_line
from launcher.journal.step_file import StepFile
from launcher.journal.step_metrics import StepMetrics

F = TypeVar("F", bound=FileRecord)

RUN_FILE = "run.json"
PLAN_FILE = "plan.json"
INVENTORY_FILE = "inventory.json"
EVENTS_FILE = "events.jsonl"
LOCK_FILE = "controller.lock"
SEEN_FILE = "seen.json"
PROFILE_FILE = "profile.json.gz"
LOGS = "logs"
SPARE_FILE, SPARE_BYTES = ".spare", 1 << 18  # freed when the disk is full, so that run.json gets its last state
_ISLAND = re.compile(rf"{ISLAND}(0|[1-9][0-9]{{0,3}})", re.ASCII)


def new_run_id() -> str:
    """Return a new run id: the start time (UTC) and four random hex digits."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(2)


class RunFolder:
    """A run's folder, to which one process at a time writes.

    Once the run has begun, a full disk does not stop it: data without room is dropped, and `lacks_room` is set.
    """

    def __init__(self, path: Path, run_id: str | None = None) -> None:
        """Create the folder if it is absent. `run_id` is its name by default; an island has a longer id.

        Raises HolmesError if another process writes to it.
        """
        self.path, self.run_id, self.lacks_room = path, run_id or path.name, False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            (path / LOGS).mkdir(mode=0o700, exist_ok=True)
            self._lock = open(path / LOCK_FILE, "w", encoding="utf-8", opener=private_opener)  # noqa: SIM115
        except OSError as error:
            raise HolmesError(
                f"{path}: cannot be created: {error.strerror}", "choose another folder with `--runs`"
            ) from None
        self._hold()
        self._events, self._steps = BoundedLog(path / EVENTS_FILE), StepFile(path)
        self._logs: dict[str, BoundedLog] = {}
        with contextlib.suppress(OSError):
            (path / SPARE_FILE).write_bytes(os.urandom(SPARE_BYTES))  # random: a file system cannot compress it

    def write_files(self, files: Mapping[str, str]) -> None:
        """Write the files that go to nodes. A later attempt's files replace earlier ones."""
        for name, text in files.items():
            path = self.path / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, text, private=True)

    def write_record(self, name: str, record: FileRecord) -> None:
        """Replace plan.json or inventory.json by the record, signed by this user. Raises HolmesError."""
        write_signed(self.path / name, record, private=True)

    def write_run(self, run: Run) -> None:
        """Replace run.json. Raises HolmesError if the first write fails."""
        try:
            self.write_record(RUN_FILE, run)
        except HolmesError as error:
            if not _is_full(error.__cause__) or not (self.path / RUN_FILE).exists():
                raise
            self.lacks_room = True
            (self.path / SPARE_FILE).unlink(missing_ok=True)
            with contextlib.suppress(HolmesError):
                self.write_record(RUN_FILE, run)

    def write_event(self, event: RunEvent) -> None:
        """Append a step to metrics.jsonl, a log line to its rank's log, and other events to events.jsonl."""
        with self.as_room_allows():
            if isinstance(event, LogLine):
                name = f"{event.host}-rank{event.rank}"
                if name not in self._logs:
                    self._logs[name] = BoundedLog(self.path / LOGS / f"{name}.log")
                self._logs[name].write(stamped(event.line))
            elif isinstance(event, StepMetrics):
                self._steps.write(event)
            else:
                self._events.write(to_line(event))

    def write_part(self, part: FilePart) -> None:
        """Write a part of a rank's file."""
        with self.as_room_allows():
            write_part(self.path, part)

    def write_seen(self, attempt: int, seen: Mapping[int, int]) -> None:
        """Store how many messages of each node are recorded, for a controller that takes over."""
        text = json.dumps({"attempt": attempt, "seen": {str(rank): count for rank, count in seen.items()}})
        temporary = self.path / f".{SEEN_FILE}"
        with self.as_room_allows():
            with open(temporary, "w", encoding="utf-8", opener=private_opener) as file:
                file.write(text)
            temporary.replace(self.path / SEEN_FILE)

    @contextlib.contextmanager
    def as_room_allows(self) -> Iterator[None]:
        """Drop data that a full disk has no room for."""
        try:
            yield
        except OSError as error:
            if not _is_full(error):
                raise
            self.lacks_room = True

    def close(self) -> None:
        """Close all files."""
        self._events.close()
        self._steps.close()
        for log in self._logs.values():
            log.close()
        (self.path / SPARE_FILE).unlink(missing_ok=True)
        self._lock.close()

    def _hold(self) -> None:
        """Lock out other controllers until the lock is closed or this process ends, if the file system has locks."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HolmesError(
                f"{self.path}: another process watches this run",
                f"`holmes attach {self.run_id}` shows it",
                ANSWER_IS_NO,
            ) from None
        except OSError:
            return


def _is_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def new_folder(runs: Path) -> RunFolder:
    """Create the folder of a new run in `runs`."""
    return RunFolder(runs / new_run_id())


def island_folders(path: Path) -> tuple[Path, ...]:
    """Return the run folders of the islands in a run's folder, in order; none for an ordinary run or an island.

    Links are ignored: a link to a folder above would make an endless chain of islands.
    """
    if is_island(path) or not is_there(path):
        return ()
    with reading(path):
        found = {int(name[1]): each for each in path.iterdir() if (name := _ISLAND.fullmatch(each.name))}
    folders = (found[number] for number in sorted(found))
    return tuple(each for each in folders if not each.is_symlink() and holds_run(each))


def is_island(path: Path) -> bool:
    """Return True if `path` is the folder of an island inside the folder of the whole run."""
    return _ISLAND.fullmatch(path.name) is not None and holds_run(path.parent)


def holds_run(path: Path) -> bool:
    """Return True if `path` holds the record of a run, readable or not."""
    return is_there(path / RUN_FILE)


def read_run(path: Path) -> Run:
    """Return the record in a run folder. Raises HolmesError."""
    return read_file(Run, path / RUN_FILE, inside=path)


def read_own(cls: type[F], path: Path, name: str) -> F:
    """Return the record in `name` of a run folder. Raises HolmesError if this user's Holmes did not write it there.

    Code that acts on processes and hosts because of a run folder must read it with this function.
    """
    signed = read_signed(cls, path / name, inside=path)
    if not signed.is_own:
        raise HolmesError(
            f"{path / name}: not written here by you; nothing is started or ended because it says so",
            "`holmes status` and `holmes logs` show that run; who launched it ends it",
        )
    return signed.record


def read_own_plan(path: Path) -> Plan | IslandsPlan:
    """Return the plan in a run folder, of islands or not, as `read_own` does."""
    return read_own(IslandsPlan, path, PLAN_FILE) if island_folders(path) else read_own(Plan, path, PLAN_FILE)


def read_seen(path: Path, attempt: int) -> dict[int, int]:
    """Return the number of stored messages of each node in the given attempt."""
    text = read_in(path, path / SEEN_FILE, MIB)
    if text is None:
        return {}
    with reading(path / SEEN_FILE):
        data = json_values(text.decode())
        return {int(rank): int(count) for rank, count in data["seen"].items()} if data["attempt"] == attempt else {}
