"""The events of a run: the same records go to the screen, to `--json` and to the run folder."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from holmes_core.records.plain_data import json_values
from holmes_core.records.plan import Plan
from holmes_runtime.config.rank_metrics import AppliedOuterSync, GroupRecord, RankNotice
from holmes_runtime.config.strict_json import decode, encode
from launcher.journal.step_metrics import StepMetrics


@dataclass(frozen=True)
class NodeState:
    """A node's new state: connecting, sending files, preflight, starting ranks, ranks up, rendezvous, stepping."""

    host: str
    cluster: str
    state: str


@dataclass(frozen=True)
class LogLine:
    """A line that a rank printed."""

    host: str
    cluster: str
    rank: int
    line: str


@dataclass(frozen=True)
class Notice:
    """A message for people, such as a finding, a restart or a new plan."""

    text: str


SHOWN_CHARACTERS = 60  # of a line, in an error message
LATEST_S = 253_402_300_799.0  # Unix time of the last second of the year 9999
MAX_STEPS = 2**53  # larger integers are not all exact as floats
MAX_STEP_S = 1e9  # thirty years

RunEvent = NodeState | LogLine | Notice | RankNotice | GroupRecord | StepMetrics | AppliedOuterSync
_KINDS: dict[str, type[RunEvent]] = {
    "node": NodeState,
    "log": LogLine,
    "notice": Notice,
    "rank_notice": RankNotice,
    "group": GroupRecord,
    "step": StepMetrics,
    "exchange": AppliedOuterSync,
}


class View(Protocol):
    """Shows a run while it lasts."""

    def show(self, event: RunEvent) -> None:
        """Show an event."""

    def take_run(self, run_id: str, started_at_s: float) -> None:
        """Take the id of the run and its start in Unix time."""

    def take_plan(self, plan: Plan) -> None:
        """Take the plan that the run follows from now on."""


class Silent:
    """The view of a detached controller. It discards everything, as readers use the run folder."""

    def show(self, event: RunEvent) -> None:
        """Discard the event."""

    def take_run(self, run_id: str, started_at_s: float) -> None:
        """Discard the run."""

    def take_plan(self, plan: Plan) -> None:
        """Discard the plan."""


def to_line(event: RunEvent) -> str:
    """Return the event as one line of JSON, with its kind and the current time."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(event, cls))
    return json.dumps({"event": kind, "time_s": time.time(), **encode(type(event), event)})


class WrittenEvent(NamedTuple):
    """An event, and the Unix time at which it was written."""

    time_s: float
    event: RunEvent


def from_line(line: str) -> WrittenEvent:
    """Return the event that `to_line` wrote. Raises ValueError for any other line and for impossible numbers."""
    data = json_values(line)
    kind = data.get("event") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"not of {', '.join(_KINDS)}: {line[:SHOWN_CHARACTERS]!r}")
    fields = {name: value for name, value in data.items() if name not in ("event", "time_s")}
    time_s, event = decode(float, data.get("time_s"), "time_s"), decode(_KINDS[kind], fields, "")
    _check(0 <= time_s <= LATEST_S, "time_s", time_s)
    if isinstance(event, StepMetrics):
        _check(0 <= event.step < MAX_STEPS, "step", event.step)
        _check(0 < event.step_s <= MAX_STEP_S, "step_s", event.step_s)
        _check((event.memory_bytes or 0) >= 0, "memory_bytes", event.memory_bytes or 0)
    return WrittenEvent(time_s, event)


def _check(is_possible: bool, key: str, value: float) -> None:
    if not is_possible:
        raise ValueError(f"{key}: {value} is not possible in a run")
