"""Where islands agree on who takes part in an exchange, and on whether it has taken place.

They meet in a store that outlives each of them. Its slots are numbered; in each, the islands that have come are made
members, whose changes are exchanged, or joiners, who are behind and get the state. Whoever decides first decides for
all. When all ranks of those who take part have what they wanted, it took place; when one has failed it did not, for
nobody, and those who are left come to the next slot. Between two slots the ranks of an island that is being given the
state agree on their turn.
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

from holmes_runtime.config.meeting_words import LEFT, SILENT, here_key, starts_key
from holmes_runtime.config.run_settings import OuterSync
from holmes_runtime.config.strict_json import MAX_VALUES, parse, to_json
from holmes_runtime.outer.decision import Coming, Decision, Patience, Reached, decide
from holmes_runtime.outer.lanes import Layout, Piece

LOOK_S = 1.0  # between two looks at who has come; a decision is heard of at once
LEAST_LOOK_S = 0.05
WATCH_S = 2.0  # between two looks whether those who are to take part are still there
DONE, FOLLOW, FAILED = "done", "follow", "failed"
KEY_BYTES = 32
MAX_LAYOUT_BYTES = 1 << 26  # of the pieces of one rank, unpacked
SLOTS_KEPT = 8  # what was said in them, for ranks that are slow to read it


class Started(NamedTuple):
    """How an island begins: its number of starts, the next slot to look at, and whether others have gone on."""

    start: int
    slot: int
    is_behind: bool


class Meeting:
    """The meeting of islands as rank `rank` of one sees it; rank 0 comes for all ranks of its island.

    `slot` is the next to look at. `limit_s` bounds how long others are waited for who have come.
    """

    def __init__(self, store: Store, sync: OuterSync, rank: int, limit_s: float) -> None:
        self._store, self._island, self._rank, self._limit_s = store, sync.island, rank, limit_s
        self._num_islands, self._quorum = sync.num_islands, sync.quorum
        self.slot = 0
        self._last: Decision | None = None

    @cached_property
    def key(self) -> bytes:
        """The key that the ranks of all islands have in common: the meeting is reached inside SSH alone."""
        return bytes.fromhex(self._store.compare_set("key", "", secrets.token_hex(KEY_BYTES)).decode())

    def start(self, exchange: int, lineage: str) -> Started:
        """How an island begins in the state `lineage`, the next of whose exchanges is that, as rank 0 finds it."""
        if self._rank:
            return Started(0, 0, False)
        reached = self.reached()
        is_behind = reached is not None and reached.is_past(exchange, lineage)
        return Started(self.begin(), reached.slot + 1 if reached else 0, is_behind)

    def begin(self) -> int:
        """The number of this start of the island; called by one rank."""
        self._store.delete_key(self._ended(self._island))
        start = int(self._store.add(starts_key(self._island), 1))
        self._store.set(here_key(self._island), str(start))
        return start

    def reached(self) -> Reached | None:
        """The last exchange that took place, if any."""
        return parse(Reached, self._store.get("reached").decode()) if self._store.check(["reached"]) else None

    def leave(self, has_ended: bool) -> None:
        """Nobody waits for this island any more, which does not come back if it `has_ended`."""
        if has_ended:
            self._store.set(self._ended(self._island), DONE)
        self._store.set(here_key(self._island), LEFT)

    def _ended(self, island: int) -> str:
        return f"ended/{island}"

    def loss(self, awaited: Sequence[Coming]) -> str | None:
        """That an island which is waited for is lost, as the controller has seen; None where all are there."""
        return next(iter(self._losses(awaited).values()), None)

    def _losses(self, awaited: Sequence[Coming]) -> dict[int, str]:
        """The islands that are lost, and how."""
        here = self._store.multi_get([here_key(each.island) for each in awaited])
        losses = dict[int, str]()
        for each, what in zip(awaited, map(bytes.decode, here), strict=True):
            if what == SILENT:
                losses[each.island] = f"island {each.island} has a host that is not heard"
            elif what not in (str(each.start), LEFT):
                losses[each.island] = f"island {each.island} is lost"
        return losses

    def _has_left(self, island: int) -> bool:
        """Whether it has, or is lost or silent, and nobody waits for it."""
        key = here_key(island)
        return self._store.check([key]) and not self._store.get(key).decode().isdigit()

    def show(self, start: int, pieces: tuple[Piece, ...]) -> None:
        """Tells other islands which pieces this rank owns."""
        text = to_json(Layout((pieces,))).encode()
        self._store.set(f"pieces/{self._island}/{start}/{self._rank}", zlib.compress(text))  # type: ignore[arg-type]

    def layout(self, island: int, start: int, num_ranks: int) -> Layout:
        """The pieces of all ranks of an island since its `start`th start."""
        keys = [f"pieces/{island}/{start}/{rank}" for rank in range(num_ranks)]
        return Layout(tuple(_pieces_in(self._store.get(key)) for key in keys))

    def meet(self, mine: Coming, patience: Patience) -> Decision:
        """Comes to the next slot; the decision that this island is in, the same on all its ranks.

        Raises RuntimeError if there is none within the time that patience allows.
        """
        while True:
            if mine.is_behind:
                patience = patience.with_interval_of(self._before())
            decision = self._lead(mine, patience) if self._rank == 0 else self._follow(patience)
            self.slot, self._last = decision.slot + 1, decision
            there = next((each for each in decision.all if each.island == self._island), None)
            if there is not None and there.start == mine.start:  # or it is about ranks that are no more
                return decision
            mine = replace(mine, is_behind=True)

    def _follow(self, patience: Patience) -> Decision:
        most_s = 2 * patience.ahead_s + self._limit_s
        try:
            self._store.wait([f"decision/{self.slot}"], timedelta(seconds=most_s))
        except RuntimeError as error:
            raise RuntimeError(f"islands: nothing was agreed on within {most_s:.0f} s: {error}") from None
        return self._decided()

    def _decided(self) -> Decision:
        return parse(Decision, self._store.get(f"decision/{self.slot}").decode())

    def _lead(self, mine: Coming, patience: Patience) -> Decision:
        key = f"decision/{self.slot}"
        if self._store.check([key]):
            return self._decided()
        self._store.set(self._came(self.slot)[self._island], to_json(mine))
        if self.slot == 0:  # some take longer to begin; to come late costs all of the state, and who is lost has left
            patience = patience._replace(grace_s=patience.ahead_s)
        everyone = set(range(self._num_islands))
        expected = everyone if patience.lost_s else self._expected()
        came_s = time.monotonic()
        while True:
            came = sorted([mine, *self.waiting()])
            losses = self._losses(came)
            coming = [each for each in came if each.island not in losses]
            waited_s = time.monotonic() - came_s
            missing = everyone - {each.island for each in coming}
            left = {each for each in missing if self._has_left(each)}
            ended = {each for each in left if self._store.check([self._ended(each)])}
            possible = everyone - (ended if waited_s < patience.lost_s else left)
            quorum = min(self._quorum, self._num_islands - len(ended))
            decision = decide(self.slot, coming, expected & possible, possible, mine, waited_s, patience, quorum)
            if decision is not None and mine in coming:  # of one that is silent the others decide
                return parse(Decision, self._store.compare_set(key, "", to_json(decision)).decode())
            if waited_s > 2 * patience.ahead_s:
                raise RuntimeError(
                    f"islands: {len(coming)} of at least {quorum} have come to exchange {mine.exchange} within "
                    f"{waited_s:.0f} s; islands that are there: {', '.join(str(each.island) for each in coming)}"
                )
            rest_s = (patience.ahead_s if mine.is_behind else patience.grace_s) - waited_s
            if self._is_there(key, min(LOOK_S, rest_s)):
                return self._decided()

    def waiting(self) -> list[Coming]:
        """The other islands that have come to the next slot."""
        keys = [key for island, key in enumerate(self._came(self.slot)) if island != self._island]
        return [parse(Coming, self._store.get(key).decode()) for key in keys if self._store.check([key])]

    def _is_there(self, key: str, limit_s: float) -> bool:
        """Whether the key is there within the time, or within `LEAST_LOOK_S` if that is more.

        A store counts whole milliseconds, and to torch's `HashStore` none at all is for ever.
        """
        try:
            self._store.wait([key], timedelta(seconds=max(limit_s, LEAST_LOOK_S)))
        except RuntimeError:
            return False
        return True

    def _came(self, slot: int) -> list[str]:
        """Where each island says that it has come."""
        return [f"coming/{slot}/{island}" for island in range(self._num_islands)]

    def tidy_up(self) -> None:
        """Takes away what was said long ago and nobody looks at any more: one island of the last exchange does.

        Decisions stay, for islands that have been away.
        """
        slot = self.slot - 1 - SLOTS_KEPT
        if self._rank == 0 and slot >= 0 and self._last and self._last.members[0].island == self._island:
            decision = parse(Decision, self._store.get(f"decision/{slot}").decode())
            turns = [key for each in decision.joiners for key in _turn_keys(slot, each.island)]
            for key in (*self._came(slot), f"done/{slot}", f"verdict/{slot}", *turns):
                self._store.delete_key(key)

    def _expected(self) -> set[int]:
        """The islands that are waited for: those of the slot before; at first all."""
        before = self._before()
        return {each.island for each in before.all} if before else set(range(self._num_islands))

    def _before(self) -> Decision | None:
        """On the slot before, if there was one."""
        if self._last is not None:
            return self._last
        key = f"decision/{self.slot - 1}"
        if self.slot == 0 or not self._store.check([key]):
            return None
        return parse(Decision, self._store.get(key).decode())

    def conclude(self, decision: Decision, trouble: str | None) -> str | None:
        """Says that this rank is done, or its `trouble`, and waits for all who take part; why it did not take place."""
        key = f"verdict/{decision.slot}"
        if trouble is None:
            total = sum(each.num_ranks for each in decision.participants)
            if self._store.add(f"done/{decision.slot}", 1) == total:
                said = self._store.compare_set(key, "", DONE)
                if said.decode() == DONE:
                    reached = Reached(decision.slot, decision.exchange, decision.lineage)
                    self._store.set("reached", to_json(reached))
            trouble = self._wait_for_verdict(decision, key)
        if trouble is not None:
            self._store.compare_set(key, "", f"island {self._island}, rank {self._rank}: {trouble}")
        return self._verdict(key)

    def hear(self, decision: Decision) -> str | None:
        """Waits for the verdict of those who take part, as a newcomer; why it did not take place."""
        key = f"verdict/{decision.slot}"
        return self._wait_for_verdict(decision, key) or self._verdict(key)

    def trouble(self, decision: Decision) -> str | None:
        """Why this exchange will not take place, as far as it is known before this rank is done."""
        key = f"verdict/{decision.slot}"
        return self._verdict(key) if self._store.check([key]) else self.loss(decision.participants)

    def _verdict(self, key: str) -> str | None:
        """That has been given: why the exchange did not take place."""
        verdict = self._store.get(key).decode()
        return None if verdict == DONE else str(verdict)

    def _wait_for_verdict(self, decision: Decision, key: str) -> str | None:
        """Why there is none, if there is none."""
        ends_s = time.monotonic() + self._limit_s
        while (rest_s := ends_s - time.monotonic()) > 0:
            if self._is_there(key, min(WATCH_S, rest_s)):
                return None
            if rest_s > WATCH_S and (loss := self.loss(decision.participants)):
                return loss
        return f"the others were not done within {self._limit_s:.0f} s"

    def tell_of_state(self, slot: int, num_ranks: int, trouble: str | None) -> None:
        """Says that this rank has all of the state after that slot, or its `trouble`: one is the turn of all ranks."""
        turn, told = _turn_keys(slot, self._island)
        if trouble is not None:
            self._store.compare_set(turn, "", f"{FAILED}: rank {self._rank}: {trouble}")
        elif self._store.add(told, 1) == num_ranks:
            self._store.compare_set(turn, "", DONE)

    def turn(self, slot: int, limit_s: float) -> str | None:
        """What all ranks of this island do that have waited since that slot; None if nothing is agreed on in time."""
        turn, _ = _turn_keys(slot, self._island)
        return self._store.get(turn).decode() if self._is_there(turn, limit_s) else None

    def follow_if_held(self, slot: int) -> None:
        """On rank 0: all ranks follow as soon as an island that is not behind has come to the next slot."""
        if self._rank == 0 and (
            any(not each.is_behind for each in self.waiting()) or self._store.check([f"decision/{self.slot}"])
        ):
            self._store.compare_set(_turn_keys(slot, self._island)[0], "", FOLLOW)


def _pieces_in(packed: bytes) -> tuple[Piece, ...]:
    """Return what `Meeting.show` packed. Raises ValueError where it is something else, or unpacks to too much."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(packed, MAX_LAYOUT_BYTES)
    except zlib.error as error:
        raise ValueError(f"the pieces of a rank cannot be unpacked: {error}") from None
    if not unpacking.eof:
        raise ValueError(f"the pieces of a rank are cut, or more than {MAX_LAYOUT_BYTES} bytes")
    (pieces,) = parse(Layout, text.decode(), MAX_VALUES).ranks
    return pieces


def _turn_keys(slot: int, island: int) -> tuple[str, str]:
    """Where the turn of an island's ranks is, and how many of them have all of the state."""
    return f"turn/{slot}/{island}", f"told/{slot}/{island}"
