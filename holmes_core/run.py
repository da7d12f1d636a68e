"""Run: what became of a plan. Its folder on the controller holds plan, logs, metrics and this record."""

from __future__ import annotations

from typing import ClassVar, Literal

from holmes_core.plan import InterfaceTraffic
from holmes_core.record import FileRecord, Record


class Failure(Record):
    """One rank's (or, with rank None, one node's) end before its time. `exit_code` < 0 is a signal's number."""

    host: str
    cluster: str
    rank: int | None
    exit_code: int
    message: str
    last_lines: tuple[str, ...]
    time_s: float


class Run(FileRecord):
    """State of one launch. Losses, tokens and traffic are None until the first step is done."""

    KIND: ClassVar[str] = "run"
    RENEW: ClassVar[str] = "holmes launch plan.json"

    schema_version: Literal[1] = 1
    run_id: str
    plan_digest: str
    state: Literal["running", "done", "failed", "stopped"]
    started_at_s: float
    ended_at_s: float | None = None
    exit_code: int | None = None
    steps_done: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    traffic: tuple[InterfaceTraffic, ...] = ()
    failures: tuple[Failure, ...] = ()
