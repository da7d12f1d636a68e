"""What an island brings to an exchange, and what it gets."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from holmes_runtime.config.rank_metrics import OuterExchange
from holmes_runtime.outer.decision import Decision
from holmes_runtime.outer.outer_state import Values


class Offer(NamedTuple):
    """What an island brings to exchange number `exchange`: the parameters it sends, and how many tokens they are from.

    Nothing if it `is_behind`. `lineage` tells the state apart in which it comes. `early` is the share of the steps
    between two exchanges that it had not taken when it was called; it takes `interval_s` for all of them.
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
    """What exchange number `exchange` has led to: for each piece it was about anchor, momentum and, if any, error.

    As joiner a rank gets the anchor and momentum of all its pieces, no error, and no digest. `islands` are those whose
    changes are in the mean, `tokens` theirs; `digest` is of what this rank has: that of an island is the sum over its
    ranks. It was decided on at `decided_s` of this rank's clock, and had taken place at `held_s`; `early` and
    `interval_s` are the furthest island's.
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
    def of(cls, decision: Decision, decided_s: float, has_joined: bool) -> Outcome:
        """Before anything has come of it."""
        furthest = min(decision.members, key=lambda each: each.early)
        return cls(
            exchange=decision.exchange,
            lineage=decision.lineage,
            has_joined=has_joined,
            anchor={},
            momentum={},
            error=None,
            islands=tuple(each.island for each in decision.members),
            tokens=sum(each.tokens for each in decision.members),
            sent_bytes=0,
            received_bytes=0,
            digest=0,
            duration_s=0.0,
            decided_s=decided_s,
            held_s=time.monotonic(),
            early=furthest.early,
            interval_s=furthest.interval_s,
        )

    def said(self, waited_s: float) -> OuterExchange:
        """As the metrics of a step have it that waited for it so long."""
        return OuterExchange(
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
class UnderWay:
    """An exchange of parameters as they were after `sent_steps`, `early_steps` before it was due, and its outcome."""

    sent_steps: int
    early_steps: int
    outcome: Future[Outcome]
