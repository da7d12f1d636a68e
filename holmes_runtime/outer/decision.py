"""Who takes part in an exchange between islands, and which state is the common one since."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from holmes_runtime.config.checks import check, check_counts
from holmes_runtime.config.strict_json import to_json

ANEW = "anew"  # no lineage
MAX_COUNT = 10**15
MAX_RANKS = 10**6
MAX_INTERVAL_S = 1e7  # between two exchanges: a third of a year
MAX_EARLY = 100  # intervals


@dataclass(frozen=True, order=True)
class Coming:
    """An island that has come, for the `start`th time begun anew, with so many ranks.

    `exchange` is the next it is to take part in, and `lineage` tells its state apart from any other. It `is_behind` if
    it knows that others have gone on without it. `tokens` are those of its change; `early` is the share of the
    steps between two exchanges that it had not taken when it was called, and it takes `interval_s` for all of them. Its
    groups were made for slot `groups`, -1 if it has none. `follows` is the lineage of the state that it is being given;
    `ANEW` where that has failed before, empty where there was none.
    """

    island: int
    start: int
    num_ranks: int
    exchange: int
    lineage: str
    is_behind: bool
    tokens: int
    early: float
    interval_s: float
    groups: int
    follows: str = ""

    def __post_init__(self) -> None:
        check_counts(self, MAX_COUNT, "island", "start", "num_ranks", "exchange", "tokens")
        check("num_ranks", self.num_ranks, f"must be 1 to {MAX_RANKS}", 1 <= self.num_ranks <= MAX_RANKS)
        check("groups", self.groups, "must be a slot, or -1", -1 <= self.groups <= MAX_COUNT)
        check("early", self.early, f"must be 0 to {MAX_EARLY}", 0 <= self.early <= MAX_EARLY)
        check("interval_s", self.interval_s, f"must be 0 to {MAX_INTERVAL_S}", 0 <= self.interval_s <= MAX_INTERVAL_S)

    @property
    def calls(self) -> bool:
        """Whether others are to come at once, as it needs their state. Who is being given it follows them."""
        return self.is_behind and not self.follows


@dataclass(frozen=True)
class Decision:
    """Who takes part in the exchange of a slot, by island: members with their changes, and joiners.

    Joiners get the state. Those who are being given that which the members come with follow: they hear of the changes.
    """

    slot: int
    exchange: int
    members: tuple[Coming, ...]
    joiners: tuple[Coming, ...]

    def __post_init__(self) -> None:
        check_counts(self, MAX_COUNT, "slot", "exchange")
        check("members", self.members, "must be one at least", bool(self.members))
        islands = [each.island for each in (*self.members, *self.joiners)]
        check("islands", islands, "must each be there once", len(set(islands)) == len(islands))

    @property
    def followers(self) -> tuple[Coming, ...]:
        """Joiners who are being given the state that the members come with."""
        return tuple(each for each in self.joiners if each.follows and each.follows == self.members[0].lineage)

    @property
    def newcomers(self) -> tuple[Coming, ...]:
        """Joiners to whom the state after this exchange is given, once it has taken place."""
        return tuple(each for each in self.joiners if each not in self.followers)

    @property
    def participants(self) -> tuple[Coming, ...]:
        """Members and followers by island: the exchange takes place among these."""
        return tuple(sorted((*self.members, *self.followers)))

    def giver(self, newcomer: Coming) -> Coming:
        """The member that gives it the state; several newcomers are given it by as many."""
        return self.members[self.newcomers.index(newcomer) % len(self.members)]

    @property
    def all(self) -> tuple[Coming, ...]:
        """Members and joiners by island."""
        return tuple(sorted((*self.members, *self.joiners)))

    @property
    def lineage(self) -> str:
        """What tells the state after the exchange apart from any other."""
        taken = to_json(replace(self, slot=0, joiners=()))
        return hashlib.blake2b(f"{self.members[0].lineage}/{taken}".encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Reached:
    """The last exchange that took place, by whom, in which slot, and what the state is since."""

    slot: int
    exchange: int
    lineage: str

    def __post_init__(self) -> None:
        check_counts(self, MAX_COUNT, "slot", "exchange")

    def is_past(self, exchange: int, lineage: str) -> bool:
        """Whether an island in the state `lineage`, the next of whose exchanges is `exchange`, has missed it."""
        return self.exchange >= exchange or (self.exchange == exchange - 1 and self.lineage != lineage)


class Patience(NamedTuple):
    """How long an island waits for others after it has come itself, and how long it waits for those that are ahead.

    For those that are lost it waits `lost_s`, as they may be on their way back.
    """

    grace_s: float
    ahead_s: float
    lost_s: float = 0.0

    def with_interval_of(self, before: Decision | None) -> Patience:
        """For those who held the exchange before, and come to the next after an interval of theirs."""
        longest_s = max((each.interval_s for each in before.all), default=0.0) if before else 0.0
        return self._replace(ahead_s=max(self.ahead_s, self.grace_s + 2 * longest_s))


def decide(
    slot: int,
    coming: Sequence[Coming],
    expected: Collection[int],
    possible: Collection[int],
    mine: Coming,
    waited_s: float,
    patience: Patience,
    quorum: int,
) -> Decision | None:
    """Who takes part, as far as island `mine` can tell that has come itself `waited_s` ago; None to wait on.

    `expected` took part the last time, and no others but `possible` can come. Those who are furthest are members, in
    the state that most of them have. Where all that come are behind those who took the last step, as after a loss of
    all, they go on from what they have.
    """
    able = [each for each in coming if not each.is_behind]
    if len(coming) < quorum:
        return None
    here = {each.island for each in coming}
    limit_s = patience.ahead_s if mine.is_behind else patience.grace_s
    if not (here >= set(expected if able else possible) or waited_s >= limit_s):
        return None
    furthest = max(each.exchange for each in able or coming)
    candidates = [each for each in able or coming if each.exchange == furthest]
    states = [each.lineage for each in candidates]
    state = max(states, key=lambda each: (states.count(each), -states.index(each)))
    members = tuple(each for each in candidates if each.lineage == state)
    return Decision(slot, furthest, members, tuple(each for each in coming if each not in members))
