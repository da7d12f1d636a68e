"""The rendezvous at which islands agree on the roster of an outer sync, and on its verdict.

It uses a store that outlives each of them, in numbered rounds. In a round, the islands that arrived become members,
which exchange pseudo-gradients, or joining islands, which are behind and receive the state. The first roster written
holds for all. The outer sync took place if all ranks of all participants are done. If one fails it took place for no
island, and the rest arrive at the next round. Between two rounds the ranks of an island that is receiving the state
agree on their turn.
"""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import NamedTuple

from torch._C._distributed_c10d import Store

from holmes_runtime.config.rendezvous_messages import LEFT, SILENT, here_key, starts_key
from holmes_runtime.config.run_settings import OuterSync
from holmes_runtime.config.strict_json import MAX_VALUES, parse, to_json
from holmes_runtime.outer.lanes import FlatSlice, ShardLayout
from holmes_runtime.outer.roster import Arrival, Patience, Roster, SyncPoint, decide

LOOK_S = 1.0  # between two looks at who has arrived; a roster is seen at once
MIN_LOOK_S = 0.05
WATCH_S = 2.0  # between two checks that the participants are still alive
DONE, FOLLOW, FAILED = "done", "follow", "failed"
KEY_BYTES = 32
MAX_LAYOUT_BYTES = 1 << 26  # of the pieces of one rank, unpacked
ROUNDS_KEPT = 8  # for ranks that are slow to read them


class IslandStart(NamedTuple):
    """The start of an island: its number, the next round, and if others have gone on without it."""

    start: int
    round_id: int
    is_behind: bool


class Rendezvous:
    """The rendezvous of islands as seen by rank `rank` of one; rank 0 arrives for all ranks of its island.

    `round_id` is the next round. `limit_s` bounds the wait for islands that have arrived.
    """

    def __init__(self, store: Store, sync: OuterSync, rank: int, limit_s: float) -> None:
        self._store, self._island, self._rank, self._limit_s = store, sync.island, rank, limit_s
        self._num_islands, self._quorum = sync.num_islands, sync.quorum
        self.round_id = 0
        self._last: Roster | None = None

    @cached_property
    def key(self) -> bytes:
        """The key that the ranks of all islands share: only SSH connections reach the rendezvous."""
        return bytes.fromhex(self._store.compare_set("key", "", secrets.token_hex(KEY_BYTES)).decode())

    def start(self, exchange: int, lineage: str) -> IslandStart:
        """Return the start of an island in state `lineage`, next due at `exchange`; only rank 0 looks."""
        if self._rank:
            return IslandStart(0, 0, False)
        reached = self.reached()
        is_behind = reached is not None and reached.is_past(exchange, lineage)
        return IslandStart(self.begin(), reached.round_id + 1 if reached else 0, is_behind)

    def begin(self) -> int:
        """Announce a start of the island and return its number; called by one rank."""
        self._store.delete_key(self._ended(self._island))
        start = int(self._store.add(starts_key(self._island), 1))
        self._store.set(here_key(self._island), str(start))
        return start

    def reached(self) -> SyncPoint | None:
        """Return the last outer sync that took place, if any."""
        return parse(SyncPoint, self._store.get("reached").decode()) if self._store.check(["reached"]) else None

    def leave(self, has_ended: bool) -> None:
        """Make the others stop waiting for this island; it does not come back if it `has_ended`."""
        if has_ended:
            self._store.set(self._ended(self._island), DONE)
        self._store.set(here_key(self._island), LEFT)

    def _ended(self, island: int) -> str:
        return f"ended/{island}"

    def loss(self, awaited: Sequence[Arrival]) -> str | None:
        """Return the first loss among the awaited islands, as reported by the controller; None if all are alive."""
        return next(iter(self._losses(awaited).values()), None)

    def _losses(self, awaited: Sequence[Arrival]) -> dict[int, str]:
        """Return the lost or silent islands, each with the reason."""
        here = self._store.multi_get([here_key(each.island) for each in awaited])
        losses = dict[int, str]()
        for each, what in zip(awaited, map(bytes.decode, here), strict=True):
            if what == SILENT:
                losses[each.island] = f"island {each.island} has a host that is not heard"
            elif what not in (str(each.start), LEFT):
                losses[each.island] = f"island {each.island} is lost"
        return losses

    def _has_left(self, island: int) -> bool:
        """Return True if it has left, or is lost or silent, so that no island waits for it."""
        key = here_key(island)
        return self._store.check([key]) and not self._store.get(key).decode().isdigit()

    def show(self, start: int, pieces: tuple[FlatSlice, ...]) -> None:
        """Publish the pieces this rank owns."""
        text = to_json(ShardLayout((pieces,))).encode()
        self._store.set(f"pieces/{self._island}/{start}/{self._rank}", zlib.compress(text))  # type: ignore[arg-type]

    def layout(self, island: int, start: int, num_ranks: int) -> ShardLayout:
        """Return the pieces of all ranks of an island since its `start`th start."""
        keys = [f"pieces/{island}/{start}/{rank}" for rank in range(num_ranks)]
        return ShardLayout(tuple(_pieces_in(self._store.get(key)) for key in keys))

    def meet(self, mine: Arrival, patience: Patience) -> Roster:
        """Arrive at the next round and return the roster that has this island, the same on all its ranks.

        Raises:
            RuntimeError: no roster within the time that `patience` allows.
        """
        while True:
            if mine.is_behind:
                patience = patience.with_interval_of(self._before())
            roster = self._lead(mine, patience) if self._rank == 0 else self._follow(patience)
            self.round_id, self._last = roster.round_id + 1, roster
            there = next((each for each in roster.all if each.island == self._island), None)
            if there is not None and there.start == mine.start:  # else it lists ranks of an earlier start
                return roster
            mine = replace(mine, is_behind=True)

    def _follow(self, patience: Patience) -> Roster:
        most_s = 2 * patience.ahead_s + self._limit_s
        try:
            self._store.wait([f"roster/{self.round_id}"], timedelta(seconds=most_s))
        except RuntimeError as error:
            raise RuntimeError(f"islands: nothing was agreed on within {most_s:.0f} s: {error}") from None
        return self._decided()

    def _decided(self) -> Roster:
        return parse(Roster, self._store.get(f"roster/{self.round_id}").decode())

    def _lead(self, mine: Arrival, patience: Patience) -> Roster:
        key = f"roster/{self.round_id}"
        if self._store.check([key]):
            return self._decided()
        self._store.set(self._came(self.round_id)[self._island], to_json(mine))
        if (
            self.round_id == 0
        ):  # some start more slowly; a late one would receive all of the state, and a lost one has left
            patience = patience._replace(grace_s=patience.ahead_s)
        everyone = set(range(self._num_islands))
        expected = everyone if patience.lost_s else self._expected()
        came_s = time.monotonic()
        while True:
            came = sorted([mine, *self.waiting()])
            losses = self._losses(came)
            arrivals = [each for each in came if each.island not in losses]
            waited_s = time.monotonic() - came_s
            missing = everyone - {each.island for each in arrivals}
            left = {each for each in missing if self._has_left(each)}
            ended = {each for each in left if self._store.check([self._ended(each)])}
            possible = everyone - (ended if waited_s < patience.lost_s else left)
            quorum = min(self._quorum, self._num_islands - len(ended))
            roster = decide(self.round_id, arrivals, expected & possible, possible, mine, waited_s, patience, quorum)
            if roster is not None and mine in arrivals:  # a silent island leaves it to the others
                return parse(Roster, self._store.compare_set(key, "", to_json(roster)).decode())
            if waited_s > 2 * patience.ahead_s:
                raise RuntimeError(
                    f"islands: {len(arrivals)} of at least {quorum} have come to exchange {mine.exchange} within "
                    f"{waited_s:.0f} s; islands that are there: {', '.join(str(each.island) for each in arrivals)}"
                )
            rest_s = (patience.ahead_s if mine.is_behind else patience.grace_s) - waited_s
            if self._is_there(key, min(LOOK_S, rest_s)):
                return self._decided()

    def waiting(self) -> list[Arrival]:
        """Return the other islands that have arrived at the next round."""
        keys = [key for island, key in enumerate(self._came(self.round_id)) if island != self._island]
        return [parse(Arrival, self._store.get(key).decode()) for key in keys if self._store.check([key])]

    def _is_there(self, key: str, limit_s: float) -> bool:
        """Return True if the key is set within the time, or within `MIN_LOOK_S` if that is more.

        A store counts whole milliseconds, and torch's `HashStore` takes 0 for no limit.
        """
        try:
            self._store.wait([key], timedelta(seconds=max(limit_s, MIN_LOOK_S)))
        except RuntimeError:
            return False
        return True

    def _came(self, round_id: int) -> list[str]:
        """Return the keys of the arrivals, by island."""
        return [f"arrival/{round_id}/{island}" for island in range(self._num_islands)]

    def tidy_up(self) -> None:
        """Delete the keys of an old round; one member of the last outer sync does so.

        Rosters stay, for islands that have been away.
        """
        round_id = self.round_id - 1 - ROUNDS_KEPT
        if self._rank == 0 and round_id >= 0 and self._last and self._last.members[0].island == self._island:
            roster = parse(Roster, self._store.get(f"roster/{round_id}").decode())
            turns = [key for each in roster.joiners for key in _turn_keys(round_id, each.island)]
            for key in (*self._came(round_id), f"done/{round_id}", f"verdict/{round_id}", *turns):
                self._store.delete_key(key)

    def _expected(self) -> set[int]:
        """Return the islands to wait for: those in the round before; at first all."""
        before = self._before()
        return {each.island for each in before.all} if before else set(range(self._num_islands))

    def _before(self) -> Roster | None:
        """Return the roster of the round before, if there was one."""
        if self._last is not None:
            return self._last
        key = f"roster/{self.round_id - 1}"
        if self.round_id == 0 or not self._store.check([key]):
            return None
        return parse(Roster, self._store.get(key).decode())

    def conclude(self, roster: Roster, trouble: str | None) -> str | None:
        """Report that this rank is done, or its `trouble`, and wait for all others; return why the sync failed."""
        key = f"verdict/{roster.round_id}"
        if trouble is None:
            total = sum(each.num_ranks for each in roster.participants)
            if self._store.add(f"done/{roster.round_id}", 1) == total:
                said = self._store.compare_set(key, "", DONE)
                if said.decode() == DONE:
                    reached = SyncPoint(roster.round_id, roster.exchange, roster.lineage)
                    self._store.set("reached", to_json(reached))
            trouble = self._wait_for_verdict(roster, key)
        if trouble is not None:
            self._store.compare_set(key, "", f"island {self._island}, rank {self._rank}: {trouble}")
        return self._verdict(key)

    def hear(self, roster: Roster) -> str | None:
        """Wait, as a newcomer, for the verdict of the participants; return why the outer sync failed."""
        key = f"verdict/{roster.round_id}"
        return self._wait_for_verdict(roster, key) or self._verdict(key)

    def trouble(self, roster: Roster) -> str | None:
        """Return why this outer sync will fail, if that is known before this rank is done."""
        key = f"verdict/{roster.round_id}"
        return self._verdict(key) if self._store.check([key]) else self.loss(roster.participants)

    def _verdict(self, key: str) -> str | None:
        """Return why the outer sync failed by the verdict at `key`; None if it took place."""
        verdict = self._store.get(key).decode()
        return None if verdict == DONE else str(verdict)

    def _wait_for_verdict(self, roster: Roster, key: str) -> str | None:
        """Wait for a verdict; return why none came, if none came."""
        ends_s = time.monotonic() + self._limit_s
        while (rest_s := ends_s - time.monotonic()) > 0:
            if self._is_there(key, min(WATCH_S, rest_s)):
                return None
            if rest_s > WATCH_S and (loss := self.loss(roster.participants)):
                return loss
        return f"the others were not done within {self._limit_s:.0f} s"

    def tell_of_state(self, round_id: int, num_ranks: int, trouble: str | None) -> None:
        """Report that this rank has all of the state after that round, or its `trouble`, which sets the turn."""
        turn, told = _turn_keys(round_id, self._island)
        if trouble is not None:
            self._store.compare_set(turn, "", f"{FAILED}: rank {self._rank}: {trouble}")
        elif self._store.add(told, 1) == num_ranks:
            self._store.compare_set(turn, "", DONE)

    def turn(self, round_id: int, limit_s: float) -> str | None:
        """Return the turn of this island's ranks, which have waited since that round; None if none is set in time."""
        turn, _ = _turn_keys(round_id, self._island)
        return self._store.get(turn).decode() if self._is_there(turn, limit_s) else None

    def follow_if_held(self, round_id: int) -> None:
        """On rank 0, let all ranks follow as soon as an up-to-date island has arrived at the next round."""
        if self._rank == 0 and (
            any(not each.is_behind for each in self.waiting()) or self._store.check([f"roster/{self.round_id}"])
        ):
            self._store.compare_set(_turn_keys(round_id, self._island)[0], "", FOLLOW)


def _pieces_in(packed: bytes) -> tuple[FlatSlice, ...]:
    """Return the pieces that `Rendezvous.show` packed. Raises ValueError if they are malformed or too large."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(packed, MAX_LAYOUT_BYTES)
    except zlib.error as error:
        raise ValueError(f"the pieces of a rank cannot be unpacked: {error}") from None
    if not unpacking.eof:
        raise ValueError(f"the pieces of a rank are cut, or more than {MAX_LAYOUT_BYTES} bytes")
    (pieces,) = parse(ShardLayout, text.decode(), MAX_VALUES).ranks
    return pieces


def _turn_keys(round_id: int, island: int) -> tuple[str, str]:
    """Return the keys of the turn of an island's ranks, and of the number of ranks that have all of the state."""
    return f"turn/{round_id}/{island}", f"told/{round_id}/{island}"
