"""The roster of an outer sync between islands, and the identity of the resulting common state."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import NamedTuple

from holmes_runtime.config.checks import check, check_counts
from holmes_runtime.config.strict_json import to_json

ANEW = "anew"  # not a lineage
MAX_COUNT = 10**15
MAX_RANKS = 10**6
MAX_INTERVAL_S = 1e7  # between two exchanges, about four months
MAX_EARLY = 100  # intervals
MAX_LINEAGE_CHARACTERS = 64


@dataclass(frozen=True, order=True)
class Arrival:
    """An island that has arrived at an outer sync, in its `start`th start, with `num_ranks` ranks.

    `exchange` is the next outer sync it takes part in, and `lineage` identifies its state. It `is_behind` if it knows
    that others have continued without it. `tokens` are the tokens of its pseudo-gradient. `early` is the share of the
    interval's steps that it had yet to take when it was called, and `interval_s` the seconds of a whole interval. Its
    groups were made in round `groups`, -1 if it has none. `follows` is the lineage of the state that it is receiving:
    `ANEW` if an earlier transfer failed, empty if there was none.
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
        check("groups", self.groups, "must be a round, or -1", -1 <= self.groups <= MAX_COUNT)
        for key, lineage in (("lineage", self.lineage), ("follows", self.follows)):
            rule = f"must have at most {MAX_LINEAGE_CHARACTERS} characters"
            check(key, lineage, rule, len(lineage) <= MAX_LINEAGE_CHARACTERS)
        check("early", self.early, f"must be 0 to {MAX_EARLY}", 0 <= self.early <= MAX_EARLY)
        check("interval_s", self.interval_s, f"must be 0 to {MAX_INTERVAL_S}", 0 <= self.interval_s <= MAX_INTERVAL_S)

    @property
    def calls(self) -> bool:
        """True if others should arrive at once: this island needs their state and is not yet receiving it."""
        return self.is_behind and not self.follows


@dataclass(frozen=True)
class Roster:
    """The roster of one rendezvous round: the members with their pseudo-gradients, and the joining islands.

    Joining islands receive the state. Those already receiving the state that the members bring are followers; they also
    receive the pseudo-gradients.
    """

    round_id: int
    exchange: int
    members: tuple[Arrival, ...]
    joiners: tuple[Arrival, ...]

    def __post_init__(self) -> None:
        check_counts(self, MAX_COUNT, "round_id", "exchange")
        check("members", self.members, "must be at least one", bool(self.members))
        islands = [each.island for each in (*self.members, *self.joiners)]
        check("islands", islands, "must each occur once", len(set(islands)) == len(islands))

    @property
    def followers(self) -> tuple[Arrival, ...]:
        """The joining islands that are already receiving the state that the members bring."""
        return tuple(each for each in self.joiners if each.follows and each.follows == self.members[0].lineage)

    @property
    def newcomers(self) -> tuple[Arrival, ...]:
        """The joining islands that receive the state after this outer sync has taken place."""
        return tuple(each for each in self.joiners if each not in self.followers)

    @property
    def participants(self) -> tuple[Arrival, ...]:
        """Members and followers in island order: the islands that communicate in the outer sync."""
        return tuple(sorted((*self.members, *self.followers)))

    @property
    def member_positions(self) -> list[int]:
        """The positions of the members among the participants."""
        participants = self.participants
        return [participants.index(each) for each in self.members]

    def giver(self, newcomer: Arrival) -> Arrival:
        """Return the member that sends the state to this newcomer. Members take turns."""
        return self.members[self.newcomers.index(newcomer) % len(self.members)]

    @property
    def all(self) -> tuple[Arrival, ...]:
        """Members and joining islands, in order."""
        return tuple(sorted((*self.members, *self.joiners)))

    @property
    def lineage(self) -> str:
        """The identifier of the state after the outer sync."""
        taken = to_json(replace(self, round_id=0, joiners=()))
        return hashlib.blake2b(f"{self.members[0].lineage}/{taken}".encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class SyncPoint:
    """The last completed outer sync: its round, its number, and the lineage of the state after it."""

    round_id: int
    exchange: int
    lineage: str

    def __post_init__(self) -> None:
        check_counts(self, MAX_COUNT, "round_id", "exchange")

    def is_past(self, exchange: int, lineage: str) -> bool:
        """Return True if an island with state `lineage`, next due at `exchange`, has missed this outer sync."""
        return self.exchange >= exchange or (self.exchange == exchange - 1 and self.lineage != lineage)


class Patience(NamedTuple):
    """Limits on waiting, in seconds: `grace_s` for others after its own arrival, `ahead_s` for islands ahead of it.

    It waits `lost_s` for lost islands, as they may be on their way back.
    """

    grace_s: float
    ahead_s: float
    lost_s: float = 0.0
