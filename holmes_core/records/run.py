"""Run: what became of a plan. Its folder on the controller holds plan, logs, metrics and this record."""

from __future__ import annotations

from typing import ClassVar, Literal

from holmes_core.records.record import FileRecord, Record

State = Literal["running", "done", "failed", "stopped"]
OnLoss = Literal["replan", "wait", "stop"]


class Failure(Record):
    """The end of a rank, of a whole node, or of the run as nothing goes on, before its time."""

    host: str | None  # None where nothing shows which is at fault
    cluster: str | None
    rank: int | None  # None for a node, or for all
    exit_code: int  # below 0: a signal's number
    message: str
    last_lines: tuple[str, ...]  # of its log
    time_s: float  # since 1970
    likely: str | None = None  # what usually causes this, in words; None where nothing is known
    host_lost: bool = False  # the node itself is gone


class MeasuredTraffic(Record):
    """Mean bytes a step over one interface, and over the RDMA ports of its host that go with it; None: not known."""

    host: str
    netdev: str
    network: str
    sent_bytes: int | None
    received_bytes: int | None
    rdma_sent_bytes: int | None = None
    rdma_received_bytes: int | None = None


class Controller(Record):
    """The process that watches a run."""

    pid: int
    start_ticks: int  # the kernel's start time of it, since ids are used again
    host: str = ""  # the name of the machine it runs on; "" in records that do not have it


class Settings(Record):
    """How a run was asked to behave."""

    detached: bool = False  # it goes on without its controller
    resume: bool = False  # the first attempt, too, continues the job's last checkpoint
    from_scratch: bool = False  # where there is no checkpoint to resume, it begins at step 1
    resume_step: int | None = None  # it goes back to the checkpoint after so many steps; None: to the newest
    restarts: int = 0  # how many it may take
    on_loss: OnLoss = "stop"  # what to do when a host is lost
    replan_when_slow: bool = False
    allow_missing_island: bool = False  # a run of islands is done though one of them was cut off


class SentCode(Record):
    """The folder of the user's own code that was sent along, as it was."""

    folder: str  # on the controller
    digest: str  # of names and contents
    files: int
    size_bytes: int
    revision: str | None  # the commit that git has checked out there; None where git knows of none
    changed: bool | None  # whether what was sent differs from that commit


class Run(FileRecord):
    """State of one launch. Losses and speeds are None until the first step is done."""

    KIND: ClassVar[str] = "run"
    RENEW: ClassVar[str] = "holmes launch plan.json"

    schema_version: Literal[1] = 1
    run_id: str
    plan_digest: str  # of the attempt's plan
    state: State
    settings: Settings = Settings()
    controller: Controller | None = None
    code: SentCode | None = None  # None where the job names none
    attempt: int = 0  # counts starts from 0: restarts and new plans
    started_at_s: float  # since 1970
    ended_at_s: float | None = None
    exit_code: int | None = None
    steps_done: int = 0  # of all attempts
    origin: str | None = None  # the sentence on where the last attempt took its weights from
    safe_steps: int | None = None  # after which the newest whole checkpoint was taken
    # The last step up to which digests of the traffic between hosts were equal at both ends; None: not compared.
    compared_steps: int | None = None
    bad_lines_skipped: int = 0  # of the data, by the last attempt
    steps_skipped: int = 0  # of them those that an island did not take, as others had gone on without it
    missing_islands: tuple[int, ...] = ()  # of a run of islands, those that do not end with the common model
    first_loss: float | None = None
    last_loss: float | None = None
    tokens_per_s: float | None = None  # of the last attempt, as the two below
    step_s: float | None = None  # the median, without the first step
    traffic: tuple[MeasuredTraffic, ...] = ()
    not_ended: tuple[str, ...] = ()  # what was left on hosts, and where
    failures: tuple[Failure, ...] = ()
