"""The contribution of an island to an outer sync, and the outcome that it receives."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from holmes_runtime.config.islands.roster import Roster
from holmes_runtime.config.rank_metrics import AppliedOuterSync
from holmes_runtime.outer.island_weights import Values


class Contribution(NamedTuple):
    """The contribution of an island to outer sync `exchange`: its parameters, and the tokens they were trained on.

    It is unused if the island `is_behind`. `lineage` identifies its state on arrival. `early` is the share of an
    interval's steps that it had not taken when it was called. `interval_s` are the seconds of a whole interval.
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
    """The result of outer sync `exchange`: anchor, momentum and, with a codec, error of each of its pieces.

    A joining rank gets the anchor and momentum of all its pieces, but no error and no digest. `islands` contributed
    pseudo-gradients to the mean, from `tokens` in total. `digest` covers this rank's part; summed over its ranks it is
    the island's. `decided_s` and `held_s` are the times of the roster and of the result on this rank's clock. `early`
    and `interval_s` belong to the furthest island.
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

    def report(self, waited_s: float) -> AppliedOuterSync:
        """Return the outcome as a metric of the step that waited `waited_s` for it."""
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
    """An outer sync of the parameters after `sent_steps`, which were `early_steps` early, and its outcome."""

    sent_steps: int
    early_steps: int
    outcome: Future[Outcome]
