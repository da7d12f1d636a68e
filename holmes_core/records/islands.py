"""The cost of each mode of a job. One mode is islands: clusters that train apart (DiLoCo)."""

from __future__ import annotations

from typing import Literal

from holmes_core.records.record import Record
from holmes_runtime.config.run_settings import OuterCodec

Mode = Literal["pipeline", "data", "both", "islands", "one cluster"]
"""The traffic between clusters: a pipeline's messages, gradients, both, outer syncs once per round, or none."""

ISLAND = "island-"


def island_name(island: int) -> str:
    """Return the name of an island's folder in the run's folder, and of its checkpoints' in the job's."""
    return f"{ISLAND}{island}"


class Round(Record):
    """The predicted cost of a round of islands."""

    round_s: float  # inner steps, plus the part of the outer syncs that they do not hide
    exposed_s: float  # part of `round_s`
    exchange_s: float  # all fragments, one after another
    end_s: float = 0.0  # the last outer sync of the run, which no inner steps hide
    sent_bytes: tuple[int, ...]  # between clusters, by island
    tokens_per_s: float


class ModePrice(Record):
    """The best plan of one mode on these hosts, or the reason why there is none."""

    mode: Mode
    clusters: tuple[str, ...] = ()  # the clusters that train
    seconds: float | None = None  # one step, or one round of islands; None if there is no plan
    tokens_per_s: float | None = None
    across_bytes: int | None = None  # sent between clusters in those seconds
    why: str = ""  # the reason why the plan has another mode


class BestMode(Record):
    """The best mode if such a link joined every two clusters."""

    bandwidth_bytes_per_s: float  # payload per host
    latency_s: float
    mode: Mode
    tokens_per_s: float
    over_next: float | None = None  # speed over that of the next best mode; None if there is no other


class LossPenalty(Record):
    """The expected rise of the loss over training as one run, in percent, with its measured 95 % interval."""

    expected: float
    low: float
    high: float
    source: str


class SettingPrice(Record):
    """A setting of islands that was considered: its round on the best grouping, and the reason for or against it."""

    inner_steps: int
    codec: OuterCodec
    fragments: int
    delay_steps: int
    sent_bytes: int  # per round, by all islands
    step_s: float  # an inner step of the fastest island, with its share of the waits
    tokens_per_s: float
    loss: LossPenalty | None = None  # None where it was not measured
    is_chosen: bool = False
    why: str


class LongerRound(Record):
    """A round of more inner steps than job.yaml fixes, which would make islands faster than the plan."""

    inner_steps: int
    tokens_per_s: float
    loss: LossPenalty | None = None  # None where it was not measured


class SlowerMode(Record):
    """A setting that rules out islands that would be faster than the plan."""

    setting: str  # with its value
    tokens_per_s: float  # of islands without it
    why: str = ""  # no round fits it


class Modes(Record):
    """The modes of a job on some hosts, best first, and the best mode under other links between clusters."""

    prices: tuple[ModePrice, ...]
    settings: tuple[SettingPrice, ...] = ()  # of islands: the choice, and those that differ from it in one key
    longer_round: LongerRound | None = None  # None if none would be much faster than the plan
    slower_by: SlowerMode | None = None  # None if no setting makes the plan much slower
    by_network: tuple[BestMode, ...] = ()  # bandwidth by bandwidth, latencies ascending
