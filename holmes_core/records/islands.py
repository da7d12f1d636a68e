"""Islands: clusters that train apart and exchange pseudo-gradients (DiLoCo); and the cost of each mode of a job."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from holmes_core.records.model import Positive
from holmes_core.records.record import Record

Mode = Literal["pipeline", "data", "both", "islands", "one cluster"]
"""The traffic between clusters: a pipeline's messages, gradients, both, islands' outer syncs once a round, or none."""


class IslandsSection(Record):
    """Training of clusters apart, as islands that exchange pseudo-gradients once a round (DiLoCo)."""

    model_config = ConfigDict(strict=True)

    inner_steps: Positive = 50
    """Steps of the fastest island in a round; others take as many as fit in its time. Example: 100"""
    codec: Literal["none", "int8", "int4"] = "int4"
    """Codec of the pseudo-gradients that islands exchange, with error feedback. Example: int8"""
    fragments: Positive = 4
    """Number of fragments of the parameters, synchronized one after another; 1: all parameters at the end of the round.
    Example: 2"""
    delay_steps: Annotated[int, Field(ge=0)] = 2
    """Steps from sending a fragment to applying the mean; 0: wait for it. Example: 5"""
    outer_rate: Annotated[float, Field(gt=0)] = 0.7
    """Learning rate of the outer step. Example: 0.7"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Nesterov momentum of the outer step. Example: 0.8"""
    grace_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that an outer sync waits for other islands after the first arrival. Example: 60"""
    quorum: Positive = 1
    """Fewest islands that may complete an outer sync. Example: 2"""

    @model_validator(mode="after")
    def _a_round_holds_its_fragments(self) -> IslandsSection:
        if self.fragments > self.inner_steps:
            raise ValueError(f"fragments {self.fragments} is more than inner_steps {self.inner_steps} of a round")
        apart = self.inner_steps // self.fragments
        if self.delay_steps > apart:
            raise ValueError(f"delay_steps {self.delay_steps} is more than the {apart} steps between two fragments")
        return self


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


class Modes(Record):
    """The modes of a job on some hosts, best first, and the best mode under other links between clusters."""

    prices: tuple[ModePrice, ...]
    by_network: tuple[BestMode, ...] = ()  # bandwidth by bandwidth, latencies ascending
