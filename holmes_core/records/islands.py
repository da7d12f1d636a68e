"""The cost of each mode of a job. One mode is islands: clusters that train apart (DiLoCo)."""

from __future__ import annotations

from typing import Literal

from holmes_core.records.record import Record
from holmes_runtime.config.run_settings import OuterCodec

Mode = Literal["pipeline", "data", "both", "islands", "one cluster"]
"""The traffic between clusters: a pipeline's messages, gradients, both, islands' outer syncs once a round, or none."""

ISLAND = "island-"


def island_name(island: int) -> str:
    """Return the name of an island's folder inside that of the whole run, and of its checkpoints' in the job's."""
    return f"{ISLAND}{island}"


class Round(Record):
    """The predicted cost of a round of islands."""

    round_s: float  # inner steps, and the part of the outer syncs that they do not hide
    exposed_s: float  # part of `round_s`
    exchange_s: float  # all fragments, one after another
    end_s: float = 0.0  # the run's last outer sync, which no inner steps hide
    sent_bytes: tuple[int, ...]  # between clusters, by island
    tokens_per_s: float


class ModePrice(Record):
    """One mode of the job on these hosts at its best, or the reason that rules it out."""

    mode: Mode
    clusters: tuple[str, ...] = ()  # the clusters that train
    seconds: float | None = None  # one step, or one round of islands; None where the mode is ruled out
    tokens_per_s: float | None = None
    across_bytes: int | None = None  # sent between clusters in those seconds
    why: str = ""  # the reason why it is not the plan's


class BestMode(Record):
    """The best mode if every two clusters were joined by such a link."""

    bandwidth_bytes_per_s: float  # payload per host
    latency_s: float
    mode: Mode
    tokens_per_s: float
    over_next: float | None = None  # times as fast as the next best mode; None where there is no other


class LossPenalty(Record):
    """The expected rise of the loss over training as one, in percent, with its 95 % interval, as measured."""

    expected: float
    low: float
    high: float
    source: str


class SettingPrice(Record):
    """A setting of islands that was considered: its round on the best grouping, and why it was taken or not."""

    inner_steps: int
    codec: OuterCodec
    fragments: int
    delay_steps: int
    sent_bytes: int  # a round, by all islands
    step_s: float  # an inner step of the fastest island, with its part of the waits
    tokens_per_s: float
    loss: LossPenalty | None = None  # None where it was not measured
    is_chosen: bool = False
    why: str


class LongerRound(Record):
    """A round of more inner steps than job.yaml has, with which islands would be faster than the plan."""

    inner_steps: int
    tokens_per_s: float
    loss: LossPenalty | None = None  # None where it was not measured


class SlowerMode(Record):
    """A setting that rules out, or slows down, islands that would be faster than the plan."""

    setting: str  # with its value
    tokens_per_s: float  # of islands without it
    why: str = ""  # no round fits it


class Modes(Record):
    """The modes of a job on some hosts, best first, and the best mode under other links between clusters."""

    prices: tuple[ModePrice, ...]
    settings: tuple[SettingPrice, ...] = ()  # of islands: the choice, and others that differ from it in one; or empty
    longer_round: LongerRound | None = None  # None where none would be much faster than the plan
    slower_by: SlowerMode | None = None  # None where no setting makes the plan much slower
    by_network: tuple[BestMode, ...] = ()  # bandwidth by bandwidth, latencies ascending
