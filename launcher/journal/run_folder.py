"""The run folder on the controller: plan, record, metrics, events, and a log a rank."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from holmes_core.errors import HolmesError
from holmes_core.records.record_file import read_file, write_atomically
from holmes_core.records.run import Run
from holmes_runtime.config.strict_json import to_json
from launcher.journal.run_events import LogLine, RunEvent, to_line
from launcher.journal.step_metrics import StepMetrics

RUN_FILE = "run.json"
PLAN_FILE = "plan.json"
INVENTORY_FILE = "inventory.json"
EVENTS_FILE = "events.jsonl"
METRICS_FILE = "metrics.jsonl"
SEEN_FILE = "seen.json"
LOGS = "logs"


def new_run_id() -> str:
    """A name for a run: the time it began (UTC), and four random digits."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(2)


class RunFolder:
    """Where one run is written down while it runs."""

    def __init__(self, path: Path) -> None:
        """Makes the folder if it is not there yet."""
        self.path = path
        try:
            (path / LOGS).mkdir(parents=True, exist_ok=True)
            self._events = open(path / EVENTS_FILE, "a", encoding="utf-8")  # noqa: SIM115
            self._metrics = open(path / METRICS_FILE, "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise HolmesError(
                f"{path}: cannot be made: {error.strerror}", "choose another folder with `--runs`"
            ) from None
        self._logs: dict[str, TextIO] = {}

    @property
    def run_id(self) -> str:
        """The folder's name."""
        return self.path.name

    def write_files(self, files: Mapping[str, str]) -> None:
        """Write plan.json and what else goes to nodes; a later attempt's replace an earlier one's."""
        for name, text in files.items():
            write_atomically(self.path / name, text)

    def write_run(self, run: Run) -> None:
        """Replace run.json."""
        write_atomically(self.path / RUN_FILE, run.to_json())

    def write_event(self, event: RunEvent) -> None:
        """Append to events.jsonl; a step to metrics.jsonl too, a log line only to its rank's log."""
        if isinstance(event, LogLine):
            self._write_log(f"{event.host}-rank{event.rank}", event.line)
            return
        self._events.write(to_line(event) + "\n")
        self._events.flush()
        if isinstance(event, StepMetrics):
            self._metrics.write(to_json(event) + "\n")
            self._metrics.flush()

    def write_seen(self, attempt: int, seen: Mapping[int, int]) -> None:
        """Remember how many messages of each node are written down, for a controller that takes over."""
        text = json.dumps({"attempt": attempt, "seen": {str(rank): count for rank, count in seen.items()}})
        temporary = self.path / f".{SEEN_FILE}"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.path / SEEN_FILE)

    def close(self) -> None:
        """Close all files."""
        for file in (self._events, self._metrics, *self._logs.values()):
            file.close()

    def _write_log(self, name: str, line: str) -> None:
        if name not in self._logs:
            self._logs[name] = open(self.path / LOGS / f"{name}.log", "a", encoding="utf-8")  # noqa: SIM115
        self._logs[name].write(line + "\n")
        self._logs[name].flush()


def new_folder(runs: Path) -> RunFolder:
    """The folder of a new run below `runs`."""
    return RunFolder(runs / new_run_id())


def read_run(path: Path) -> Run:
    """The record in a run folder. Raises HolmesError."""
    return read_file(Run, path / RUN_FILE)


def read_seen(path: Path, attempt: int) -> dict[int, int]:
    """How many messages of each node were written down in that attempt."""
    try:
        data = json.loads((path / SEEN_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {int(rank): count for rank, count in data["seen"].items()} if data["attempt"] == attempt else {}
