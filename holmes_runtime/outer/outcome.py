"""The offer an island brings to an outer sync, and the outcome it receives."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from holmes_runtime.config.islands.roster import Roster
from holmes_runtime.config.rank_metrics import AppliedOuterSync
from holmes_runtime.outer.island_weights import Values


class Contribution(NamedTuple):
    """The contribution of an island to outer sync `exchange`: the parameters it sends, and the tokens behind them.

    It is not used if the island `is_behind`. `lineage` identifies its state on arrival. `early` is the share of an
    interval's steps that it had not taken when it was called, and `interval_s` the seconds of a whole interval.
    """

    exchange: int
    lineage: str
    is_behind: bool
    parameters: Values
    tokens: int
    early: float
    interval_s: float
    step_s: float


class Outcome(NamedTuple):
    """The result of outer sync `exchange`: anchor, momentum and, if any, error of each of its pieces.

    A joining rank gets the anchor and momentum of all its pieces, no error, and no digest. `islands` are those with a
    pseudo-gradient in the mean, and `tokens` their sum. `digest` is that of this rank's part; an island's is the sum
    over its ranks. The roster was agreed on at `decided_s` of this rank's clock, and the outer sync had taken place at
    `held_s`. `early` and `interval_s` are the furthest island's.
    """

    exchange: int
    lineage: str
    has_joined: bool
    anchor: Values
    momentum: Values
    error: Values | None
    islands: tuple[int, ...]
    tokens: int
    sent_bytes: int
    received_bytes: int
    digest: int
    duration_s: float
    decided_s: float
    held_s: float
    early: float
    interval_s: float

    @classmethod
    def of(cls, roster: Roster, decided_s: float, has_joined: bool) -> Outcome:
        """Return the outcome before any values are known."""
        furthest = min(roster.members, key=lambda each: each.early)
        return cls(
            exchange=roster.exchange,
            lineage=roster.lineage,
            has_joined=has_joined,
            anchor={},
            momentum={},
            error=None,
            islands=tuple(each.island for each in roster.members),
            tokens=sum(each.tokens for each in roster.members),
            sent_bytes=0,
            received_bytes=0,
            digest=0,
            duration_s=0.0,
            decided_s=decided_s,
            held_s=time.monotonic(),
            early=furthest.early,
            interval_s=furthest.interval_s,
        )

    def said(self, waited_s: float) -> AppliedOuterSync:
        """Return the outcome as metrics of a step that waited `waited_s` for it."""
        return AppliedOuterSync(
            self.exchange,
            self.has_joined,
            self.islands,
            self.tokens,
            self.sent_bytes,
            self.received_bytes,
            self.duration_s,
            waited_s,
            f"{self.digest:016x}",
        )


@dataclass
class InFlightSync:
    """An outer sync of the parameters after `sent_steps`, `early_steps` before it was due, and its outcome."""

    sent_steps: int
    early_steps: int
    outcome: Future[Outcome]
