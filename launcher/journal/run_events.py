"""What a run tells those who look at it: one kind of record for the screen, for `--json` and for the run folder."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from holmes_core.records.plain_data import json_values
from holmes_core.records.plan import Plan
from holmes_runtime.config.rank_metrics import OuterExchange, RankNotice
from holmes_runtime.config.strict_json import decode, encode
from launcher.journal.step_metrics import StepMetrics


@dataclass(frozen=True)
class NodeState:
    """A node came further: connecting, sending files, preflight, starting ranks, ranks up, rendezvous, stepping."""

    host: str
    cluster: str
    state: str


@dataclass(frozen=True)
class LogLine:
    """A line a rank printed."""

    host: str
    cluster: str
    rank: int
    line: str


@dataclass(frozen=True)
class Notice:
    """Something a person should know, such as a finding, a restart or a new plan."""

    text: str


RunEvent = NodeState | LogLine | Notice | RankNotice | StepMetrics | OuterExchange
_KINDS: dict[str, type[RunEvent]] = {
    "node": NodeState,
    "log": LogLine,
    "notice": Notice,
    "rank_notice": RankNotice,
    "step": StepMetrics,
    "exchange": OuterExchange,
}


class View(Protocol):
    """Who shows the run while it lasts."""

    def show(self, event: RunEvent) -> None:
        """Show what happened."""

    def take_run(self, run_id: str, started_at_s: float) -> None:
        """The run that is shown, and when it began (Unix time)."""

    def take_plan(self, plan: Plan) -> None:
        """From now on the run follows this plan."""


class Silent:
    """A view nobody looks at: that of a detached controller, whose events are read from the run folder."""

    def show(self, event: RunEvent) -> None:
        """Nobody looks."""

    def take_run(self, run_id: str, started_at_s: float) -> None:
        """Nobody looks."""

    def take_plan(self, plan: Plan) -> None:
        """Nobody looks."""


def to_line(event: RunEvent) -> str:
    """The event as one line of JSON, with its kind and the time it is written."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(event, cls))
    return json.dumps({"event": kind, "time_s": time.time(), **encode(type(event), event)})


class WrittenEvent(NamedTuple):
    """An event, and the Unix time at which it was written."""

    time_s: float
    event: RunEvent


def from_line(line: str) -> WrittenEvent:
    """The event `to_line` wrote. Raises ValueError for anything else."""
    data = json_values(line)
    if not isinstance(data, dict) or data.get("event") not in _KINDS:
        raise ValueError(f"not of {', '.join(_KINDS)}")
    fields = {name: value for name, value in data.items() if name not in ("event", "time_s")}
    time_s = decode(float, data.get("time_s"), "time_s")
    return WrittenEvent(time_s, decode(_KINDS[data["event"]], fields, ""))
