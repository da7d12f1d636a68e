"""The membership of outer syncs between islands: the controller decides on rosters and verdicts.

Rounds follow one another. In a round islands arrive until its roster is decided: members, which exchange
pseudo-gradients, and joining islands, which are behind and receive the state. Then all ranks of all participants report
how it went, and the round ends with its verdict. If one of them fails or is lost, the outer sync took place for no
island, and the rest arrive at the next round.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from holmes_runtime.config.checks import check
from holmes_runtime.config.islands.membership_messages import (
    DONE,
    LEFT,
    LOST,
    SILENT,
    Arrive,
    Begin,
    Conclude,
    Decision,
    IslandStart,
    Leave,
    Standing,
    decision_key,
    turn_keys,
    verdict_key,
)
from holmes_runtime.config.islands.roster import Arrival, Patience, Roster, SyncPoint
from holmes_runtime.config.strict_json import to_json

ROUNDS_KEPT = 8  # for ranks that are slow to read what was decided
MAX_TROUBLE_CHARACTERS = 2000


class _Arrived(NamedTuple):
    arrival: Arrival
    patience: Patience
    key: str  # of the decision
    since_s: float


@dataclass
class _Member:
    """An island: how often it has started, its state as in `Standing`, and its arrival at the next round."""

    starts: int = 0
    state: str = ""
    has_ended: bool = False
    arrived: _Arrived | None = None

    @property
    def is_away(self) -> bool:
        """True if no island waits for it."""
        return self.state in (LEFT, LOST, SILENT)


class Membership:
    """The membership of `num_islands` where `quorum` must arrive. Not safe for threads: its server holds a lock.

    `publish` puts a text at a key, and `forget` deletes one. `now_s` is the monotonic clock.
    """

    def __init__(
        self,
        num_islands: int,
        quorum: int,
        publish: Callable[[str, str], None],
        forget: Callable[[str], object],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._islands = [_Member() for _ in range(num_islands)]
        self._quorum, self._publish, self._forget, self._now_s = quorum, publish, forget, now_s
        self._last: Roster | None = None
        self._is_under_way = False  # the outer sync of the last roster
        self._done = set[tuple[int, int]]()  # ranks that have reported so, each with its island
        self._reached: SyncPoint | None = None
        self._concluded_s = now_s()  # before, no time counts as waited: others were still at the outer sync before
        self._published = deque[list[str]]()  # keys by round

    @property
    def standing(self) -> Standing:
        """The answer to `Look`."""
        waiting = tuple(self._behind(each.arrived.arrival) for each in self._islands if each.arrived is not None)
        return Standing(self._next_round, waiting, tuple(each.state for each in self._islands))

    def begin(self, number: int, message: Begin) -> IslandStart:
        """Take a start of an island, and return it."""
        island = self._islands[number]
        island.starts += 1
        island.state, island.has_ended, island.arrived = str(island.starts), False, None
        self._take_losses()
        return IslandStart(island.starts, self._has_missed(message.exchange, message.lineage))

    def leave(self, number: int, message: Leave) -> None:
        """Stop waiting for an island."""
        island = self._islands[number]
        island.state, island.has_ended, island.arrived = LEFT, island.has_ended or message.has_ended, None
        self.look()

    def lose(self, number: int) -> None:
        """Take the end of an island's attempt: its outer sync does not take place."""
        island = self._islands[number]
        island.state, island.arrived = LOST, None
        self._take_losses()

    def hear(self, number: int, is_heard: bool) -> None:
        """Mark an island as silent, or as heard again."""
        island = self._islands[number]
        if is_heard and island.state == SILENT:
            island.state = str(island.starts)
        elif not is_heard and island.state == str(island.starts):
            island.state = SILENT
        else:
            return
        self._take_losses()

    def arrive(self, number: int, message: Arrive) -> None:
        """Take the arrival of an island; it may be sent twice. Raises ValueError if it is not of this start."""
        island, arrival = self._islands[number], message.arrival
        check("island", arrival.island, f"must be {number}, whose rank it is", arrival.island == number)
        check("start", arrival.start, f"must be {island.starts}, its last", arrival.start == island.starts)
        key = decision_key(number, arrival.start, message.meeting)
        if not any(key in keys for keys in self._published):
            island.arrived = _Arrived(arrival, message.patience, key, self._now_s())
            self.look()

    def conclude(self, number: int, message: Conclude) -> None:
        """Take the report of a rank of a participant. Raises ValueError if there is no such rank."""
        roster = self._last
        if roster is None or not self._is_under_way or message.round_id != roster.round_id:
            return  # its verdict is known
        num_ranks = {each.island: each.num_ranks for each in roster.participants}.get(number, 0)
        check("rank", message.rank, f"must be below {num_ranks}", 0 <= message.rank < num_ranks)
        if message.trouble:
            self._end(f"island {number}, rank {message.rank}: {message.trouble[:MAX_TROUBLE_CHARACTERS]}")
            return
        self._done.add((number, message.rank))
        if len(self._done) == sum(each.num_ranks for each in roster.participants):
            self._reached = SyncPoint(roster.round_id, roster.exchange, roster.lineage)
            self._end(DONE)

    def look(self) -> None:
        """Decide on the next roster if it is time. Call this regularly."""
        if self._is_under_way:
            return
        roster = self._decide()
        if roster is not None:
            self._begin_sync(roster)
            return
        for island in self._islands:
            if island.arrived is not None and self._waited_s(island.arrived) > 2 * self._ahead_s(island.arrived):
                self._publish(island.arrived.key, to_json(Decision(None, self._too_few(island.arrived))))
                island.arrived = None

    @property
    def _next_round(self) -> int:
        return self._last.round_id + 1 if self._last else 0

    def _has_missed(self, exchange: int, lineage: str) -> bool:
        return self._reached is not None and self._reached.is_past(exchange, lineage)

    def _behind(self, arrival: Arrival) -> Arrival:
        """Return the arrival, behind if the others have gone on meanwhile."""
        has_missed = self._has_missed(arrival.exchange, arrival.lineage)
        return replace(arrival, is_behind=arrival.is_behind or has_missed)

    def _ahead_s(self, arrived: _Arrived) -> float:
        """Return the seconds it waits for islands ahead of it, which may first end an interval."""
        longest_s = max((each.interval_s for each in self._last.all), default=0.0) if self._last else 0.0
        is_behind = self._behind(arrived.arrival).is_behind
        return max(arrived.patience.ahead_s, is_behind * (arrived.patience.grace_s + 2 * longest_s))

    def _waited_s(self, arrived: _Arrived) -> float:
        return self._now_s() - max(arrived.since_s, self._concluded_s)

    def _here(self) -> list[_Arrived]:
        """Return the islands that have arrived and are heard, in order."""
        return [each.arrived for each in self._islands if each.arrived is not None and not each.is_away]

    def _decide(self) -> Roster | None:
        """Return the roster of the next round, None to wait on.

        Members are the furthest islands in the state that most of them have. If every arrival is behind the last outer
        sync, as after a loss of all islands, they go on from the state they have.
        """
        here = self._here()
        if len(here) < self._needed or not (self._all_are_here(here) or any(map(self._has_waited, here))):
            return None
        arrivals = [self._behind(each.arrival) for each in here]
        able = [each for each in arrivals if not each.is_behind] or arrivals
        furthest = max(each.exchange for each in able)
        candidates = [each for each in able if each.exchange == furthest]
        states = [each.lineage for each in candidates]
        state = max(states, key=lambda each: (states.count(each), -states.index(each)))
        members = tuple(each for each in candidates if each.lineage == state)
        return Roster(self._next_round, furthest, members, tuple(each for each in arrivals if each not in members))

    @property
    def _needed(self) -> int:
        """The islands that must arrive: not those that have ended."""
        return max(1, min(self._quorum, sum(not each.has_ended for each in self._islands)))

    def _all_are_here(self, here: list[_Arrived]) -> bool:
        """Return True if all have arrived that took part the last time and can arrive.

        Lost ones can as long as one waits for them, and then none may be missing. Where all are behind, anyone who is
        ahead is awaited.
        """
        for_lost = any(each.patience.lost_s for each in here)
        may_return = any(self._waited_s(each) < each.patience.lost_s for each in here)
        everyone = self._last is None or for_lost or all(self._behind(each.arrival).is_behind for each in here)
        before = {each.island for each in self._last.all} if self._last else set()
        missing = set(range(len(self._islands))) - {each.arrival.island for each in here}
        awaited = missing if everyone else missing & before
        return all(self._islands[each].has_ended if may_return else self._islands[each].is_away for each in awaited)

    def _has_waited(self, arrived: _Arrived) -> bool:
        """Return True if it waits no longer.

        At the first round some start more slowly, and one that is late would receive all of the state.
        """
        is_behind = self._behind(arrived.arrival).is_behind
        limit_s = self._ahead_s(arrived) if is_behind or self._last is None else arrived.patience.grace_s
        return self._waited_s(arrived) >= limit_s

    def _too_few(self, arrived: _Arrived) -> str:
        here = self._here()
        return (
            f"{len(here)} of at least {self._needed} have arrived at outer sync {arrived.arrival.exchange} within "
            f"{self._waited_s(arrived):.0f} s: {', '.join(f'island {each.arrival.island}' for each in here)}"
        )

    def _begin_sync(self, roster: Roster) -> None:
        self._last, self._is_under_way, self._done = roster, True, set()
        turns = [key for each in roster.joiners for key in turn_keys(roster.round_id, each.island)]
        keys = [verdict_key(roster.round_id), *turns]
        for each in roster.all:
            island = self._islands[each.island]
            assert island.arrived is not None
            self._publish(island.arrived.key, to_json(Decision(roster)))
            keys.append(island.arrived.key)
            island.arrived = None
        self._published.append(keys)
        if len(self._published) > ROUNDS_KEPT:
            for key in self._published.popleft():
                self._forget(key)

    def _end(self, verdict: str) -> None:
        """End the round that is under way."""
        assert self._last is not None
        self._is_under_way, self._concluded_s = False, self._now_s()
        self._publish(verdict_key(self._last.round_id), verdict)
        self.look()

    def _take_losses(self) -> None:
        """End the outer sync that is under way if one of its participants is lost or silent."""
        if self._is_under_way and self._last is not None:
            standing = self.standing
            loss = next(filter(None, map(standing.loss, self._last.participants)), None)
            if loss is not None:
                self._end(loss)
        self.look()
