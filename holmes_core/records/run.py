"""Run: what became of a plan. Its folder on the controller holds plan, logs, metrics and this record."""

from __future__ import annotations

from typing import ClassVar, Literal

from holmes_core.records.plan import InterfaceTraffic
from holmes_core.records.record import FileRecord, Record

State = Literal["running", "done", "failed", "stopped"]
OnLoss = Literal["replan", "wait", "stop"]


class Failure(Record):
    """One rank's (or, with rank None, one node's) end before its time. `exit_code` < 0 is a signal's number.

    `likely` says in words what usually causes this, None where nothing is known. `host_lost`: the node itself is gone.
    """

    host: str
    cluster: str
    rank: int | None
    exit_code: int
    message: str
    last_lines: tuple[str, ...]
    time_s: float
    likely: str | None = None
    host_lost: bool = False


class Controller(Record):
    """The process that watches a run: its id, and the kernel's start time of it, since ids are used again."""

    pid: int
    start_ticks: int


class Settings(Record):
    """How a run was asked to behave. An attached run ends with its controller; a detached one goes on.

    `resume`: the first attempt, too, continues the job's last checkpoint.
    """

    detached: bool = False
    resume: bool = False
    restarts: int = 0
    on_loss: OnLoss = "stop"
    replan_when_slow: bool = False


class Run(FileRecord):
    """State of one launch. Losses, tokens and traffic are None until the first step is done.

    `attempt` counts starts from 0: restarts and new plans. `plan_digest` is that of the attempt's plan.
    """

    KIND: ClassVar[str] = "run"
    RENEW: ClassVar[str] = "holmes launch plan.json"

    schema_version: Literal[1] = 1
    run_id: str
    plan_digest: str
    state: State
    settings: Settings = Settings()
    controller: Controller | None = None
    attempt: int = 0
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
