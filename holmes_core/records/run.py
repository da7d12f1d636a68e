"""Run: the state and outcome of a launched plan. Its folder on the controller holds plan, logs, metrics and this
record.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from holmes_core.records.record import FileRecord, Record

State = Literal["running", "done", "failed", "stopped"]
OnLoss = Literal["replan", "wait", "stop"]


class Failure(Record):
    """The premature end of a rank or a node, or of a run that makes no progress."""

    host: str | None  # None if nothing shows the host at fault
    cluster: str | None
    rank: int | None  # None for a node, or for all
    exit_code: int  # below 0: a signal's number
    message: str
    last_lines: tuple[str, ...]  # the last lines of its log
    time_s: float  # since 1970
    likely: str | None = None  # its usual cause, as a sentence; None if unknown
    host_lost: bool = False  # the node itself is gone


class MeasuredTraffic(Record):
    """Mean bytes per step over one interface, and over the RDMA ports of the same network; None: not known."""

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
    start_ticks: int  # the process's start time by the kernel, since ids are reused
    host: str = ""  # the machine's name; "" in older records


class Settings(Record):
    """The options of a run."""

    detached: bool = False  # the run continues without its controller
    resume: bool = False  # the first attempt, too, continues from the job's last checkpoint
    from_scratch: bool = False  # without a checkpoint to resume from, the run begins at step 1
    resume_step: int | None = None  # resume from the checkpoint after that many steps; None: from the newest
    restarts: int = 0  # the most restarts allowed
    on_loss: OnLoss = "stop"  # the reaction to the loss of a host
    replan_when_slow: bool = False
    allow_missing_island: bool = False  # a run of islands counts as done even if one of them was cut off


class SentCode(Record):
    """The folder of the user's own code, as sent."""

    folder: str  # on the controller
    digest: str  # a digest of names and contents
    files: int
    size_bytes: int
    revision: str | None  # the commit that git has checked out there; None outside a git repository
    changed: bool | None  # the code that was sent differs from that commit


class NetworkGroups(Record):
    """The number of process groups that a trainer's ranks have made on one network."""

    network: str | None  # None: all members are on one host
    net_name: str | None  # the transport that NCCL was set to use
    count: int


class Run(FileRecord):
    """State of one launch. Losses and speeds are None until the first step is done."""

    KIND: ClassVar[str] = "run"
    RENEW: ClassVar[str] = "holmes launch plan.json"

    schema_version: Literal[1] = 1
    run_id: str
    plan_digest: str  # the attempt's plan
    state: State
    settings: Settings = Settings()
    controller: Controller | None = None
    code: SentCode | None = None  # None if the job names none
    attempt: int = 0  # counts starts from 0: restarts and new plans
    started_at_s: float  # since 1970
    ended_at_s: float | None = None
    exit_code: int | None = None
    steps_done: int = 0  # all attempts together
    origin: str | None = None  # the sentence on the source of the last attempt's weights
    safe_steps: int | None = None  # after which the newest whole checkpoint was taken
    best_steps: int | None = None  # the same of the checkpoint of the lowest validation loss; None: none has a loss
    best_checkpoint: str | None = None  # the sentence on its path and loss
    early_stop: str | None = None  # the sentence on why the run ended by itself before its last step
    # The last step up to which digests of the traffic between hosts were equal at both ends; None: not compared.
    compared_steps: int | None = None
    bad_lines_skipped: int = 0  # lines of the data, in the last attempt
    steps_skipped: int = 0  # with the steps that an island skipped because others had continued without it
    missing_islands: tuple[int, ...] = ()  # islands that ended without the common model
    first_loss: float | None = None
    last_loss: float | None = None
    tokens_per_s: float | None = None  # the last attempt's, as the two below
    step_s: float | None = None  # the median, without the first step
    traffic: tuple[MeasuredTraffic, ...] = ()
    groups: tuple[NetworkGroups, ...] = ()  # of the last attempt, if a trainer's own command makes them
    not_ended: tuple[str, ...] = ()  # processes or files that remain, with their hosts
    failures: tuple[Failure, ...] = ()
