"""One exchange between islands from the coming to the verdict, as one rank takes part in it; in a thread of its own."""

from __future__ import annotations

import ctypes
import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from holmes_runtime.config.codec import Codec
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.outer.lane_exchange import OpenLane, Parcel, carry, open_lanes
from holmes_runtime.outer.lanes import Cell, lanes_of
from holmes_runtime.outer.meeting import LOOK_S, WATCH_S, Coming, Decision, Meeting, Patience
from holmes_runtime.outer.outcome import Offer, Outcome
from holmes_runtime.outer.outer_state import OuterState, Values
from holmes_runtime.outer.outer_step import Outgoing, Stepped, arrived, outer_step, outgoing

MOST_FAILURES = 5  # of one exchange, each after islands agreed to hold it
DIGEST_BYTES = 8

Done = TypeVar("Done")


class IslandExchange:
    """Exchanges of one rank. `start` is the number of this start of its island, `fragments` says what travels when."""

    def __init__(
        self,
        config: RunConfig,
        rank: int,
        state: OuterState,
        meeting: Meeting,
        store: Store,
        start: int,
        fragments: dict[str, int],
    ) -> None:
        assert config.outer_sync is not None
        self._sync, self._rank, self._state = config.outer_sync, rank, state
        self._meeting, self._store, self._fragments = meeting, store, fragments
        self._start, self._num_ranks, self._limit_s = start, config.world_size, config.timeout_s
        self._lanes: list[OpenLane] = []
        self._opened, self._islands = -1, 0  # the slot for which groups were made, and of how many islands

    def hold(self, offer: Offer) -> Outcome:
        """Takes part in one exchange, with those who come. Raises RuntimeError if none takes place."""
        began_s = time.monotonic()
        # Who is called comes after the step it is in.
        grace_s = max(self._sync.grace_s, 2 * (offer.step_s + LOOK_S))
        patience = Patience(grace_s, grace_s + self._limit_s + 2 * offer.interval_s)
        trouble = None
        for _ in range(MOST_FAILURES):
            mine = Coming(
                self._sync.island,
                self._start,
                self._num_ranks,
                offer.exchange,
                offer.lineage,
                offer.is_behind,
                offer.tokens,
                offer.early,
                offer.interval_s,
                self._opened,
            )
            decision = self._meeting.meet(mine, patience)
            outcome: Outcome | None = None
            try:
                self._open(decision)
                outcome, fault = self._watched(decision, partial(self._take_part, decision, offer)), None
            except (RuntimeError, ValueError) as error:
                self._lanes, self._opened, fault = [], -1, str(error)
            trouble = self._meeting.conclude(decision, fault)
            if trouble is None:
                assert outcome is not None
                return outcome._replace(duration_s=time.monotonic() - began_s)
            self._lanes, self._opened = [], -1
            if self._rank == 0:
                print(f"exchange {decision.exchange} of islands is held again: {trouble}", flush=True)
        raise RuntimeError(f"islands: exchange {offer.exchange} failed {MOST_FAILURES} times; the last time {trouble}")

    def _take_part(self, decision: Decision, offer: Offer) -> Outcome:
        everyone = decision.all
        position = [each.island for each in everyone].index(self._sync.island)
        members = [everyone.index(each) for each in decision.members]
        joiners = [everyone.index(each) for each in decision.joiners]
        furthest = min(decision.members, key=lambda each: each.early)
        outcome = Outcome(
            exchange=decision.exchange,
            lineage=decision.lineage,
            has_joined=position in joiners,
            anchor={},
            momentum={},
            error=None,
            islands=tuple(each.island for each in decision.members),
            tokens=sum(each.tokens for each in decision.members),
            sent_bytes=0,
            received_bytes=0,
            digest=0,
            duration_s=0.0,
            decided_s=time.monotonic(),
            early=furthest.early,
            interval_s=furthest.interval_s,
        )
        if position in joiners:
            return self._join(outcome, members[0])
        outcome = self._step(outcome, decision, offer, position, members)
        if position == members[0]:
            outcome = self._give(outcome, joiners)
        return outcome

    def _watched(self, decision: Decision, act: Callable[[], Done]) -> Done:
        """What `act` comes to. Raises RuntimeError as soon as it is known that an island is lost which it waits for.

        Nothing ends a wait in Gloo before its time, so it is left to a thread, whose result nobody takes then.
        """
        done = Future[Done]()

        def run() -> None:
            try:
                done.set_result(act())
            except BaseException as error:
                done.set_exception(error)

        Thread(target=run, name="islands' bytes", daemon=True).start()
        while True:
            try:
                return done.result(WATCH_S)
            except TimeoutError:
                if done.done():
                    raise
            if lost := self._meeting.loss(decision):
                raise RuntimeError(lost)

    def _open(self, decision: Decision) -> None:
        """Makes the groups that are needed, unless all have the same from an exchange before."""
        everyone, slot = decision.all, decision.slot
        made = {each.groups for each in everyone}
        if len(made) == 1 and self._opened >= 0 and self._islands == len(everyone):
            return
        self._lanes = []
        layouts = [self._meeting.layout(each.island, each.start, each.num_ranks) for each in everyone]
        position = [each.island for each in everyone].index(self._sync.island)
        lanes = lanes_of(layouts, position, self._rank)
        limit, interface = timedelta(seconds=self._limit_s), self._sync.interfaces[self._rank]
        self._lanes = self._watched(
            decision,
            lambda: open_lanes(lanes, position, f"lanes/{slot}", self._store, limit, interface, self._sync.streams),
        )
        self._opened, self._islands = slot, len(everyone)

    def _cells(self, lane: OpenLane, fragment: int) -> list[Cell]:
        return [cell for cell in lane.lane.cells if self._fragments[cell.name] == fragment]

    def _step(
        self, outcome: Outcome, decision: Decision, offer: Offer, position: int, members: Sequence[int]
    ) -> Outcome:
        """The outer step of this rank's part of the fragment."""
        state, sync = self._state, self._sync
        fragment = decision.exchange % sync.fragments
        codec: Codec = sync.codec if len(members) > 1 else "none"  # alone there is nothing to save
        peers = tuple(each for each in members if each != position)
        lanes = [(lane, cells) for lane in self._lanes if (cells := self._cells(lane, fragment))]
        own = [self._outgoing(cells, offer.parameters, codec) for _, cells in lanes]
        parcels = [
            Parcel(lane, each.packed, peers, {peer: torch.empty_like(each.packed) for peer in peers})
            for (lane, _), each in zip(lanes, own, strict=True)
        ]
        sent_bytes = carry(parcels, sync.streams)
        values = {name: torch.empty_like(piece) for name, piece in offer.parameters.items()}
        outcome = outcome._replace(anchor=values, momentum={name: each.clone() for name, each in values.items()})
        if state.error is not None:
            outcome = outcome._replace(error={name: torch.empty_like(each) for name, each in values.items()})
        tokens = [each.tokens for each in decision.members]
        digests = []
        for (_, cells), mine, parcel in zip(lanes, own, parcels, strict=True):
            parts = [
                mine.arrives if each == position else arrived(parcel.gets[each], codec, len(mine.arrives))
                for each in members
            ]
            anchor, momentum = state.gather(state.anchor, cells), state.gather(state.momentum, cells)
            stepped = outer_step(anchor, momentum, parts, tokens, codec, sync.outer_rate, sync.momentum)
            digests.append(_digest(stepped))
            state.scatter(stepped.anchor, outcome.anchor, cells)
            state.scatter(stepped.momentum, outcome.momentum, cells)
            if outcome.error is not None and mine.error is not None:
                state.scatter(mine.error, outcome.error, cells)
        self._compare([lane for lane, _ in lanes], digests, peers, decision)
        received_bytes = _received_bytes(parcels)
        return outcome._replace(sent_bytes=sent_bytes, received_bytes=received_bytes, digest=_sum_of(digests))

    def _outgoing(self, cells: Sequence[Cell], parameters: Values, codec: Codec) -> Outgoing:
        state = self._state
        error = state.gather(state.error, cells) if state.error is not None else None
        return outgoing(state.gather(state.anchor, cells), state.gather(parameters, cells), error, codec)

    def _compare(
        self, lanes: Sequence[OpenLane], digests: Sequence[Tensor], peers: tuple[int, ...], decision: Decision
    ) -> None:
        """Raises RuntimeError unless all islands have come to the same."""
        theirs = [{peer: torch.empty_like(mine) for peer in peers} for mine in digests]
        parcels = [Parcel(lane, mine, peers, gets) for lane, mine, gets in zip(lanes, digests, theirs, strict=True)]
        carry(parcels, 1)
        for lane, mine, gets in zip(lanes, digests, theirs, strict=True):
            for peer, other in gets.items():
                if not torch.equal(mine, other):
                    raise RuntimeError(
                        f"exchange {decision.exchange}: what rank {lane.lane.owners[peer]} of island "
                        f"{decision.all[peer].island} has is not what this rank has: their states differ"
                    )

    def _give(self, outcome: Outcome, joiners: Sequence[int]) -> Outcome:
        """Gives those who join the state after this exchange: all fragments of it."""
        state = self._state
        anchor, momentum = {**state.anchor, **outcome.anchor}, {**state.momentum, **outcome.momentum}
        parcels = []
        for lane in self._lanes if joiners else ():
            both = torch.cat([state.gather(anchor, lane.lane.cells), state.gather(momentum, lane.lane.cells)])
            parcels.append(Parcel(lane, both, tuple(joiners), {}))
        return outcome._replace(sent_bytes=outcome.sent_bytes + carry(parcels, self._sync.streams))

    def _join(self, outcome: Outcome, donor: int) -> Outcome:
        """Gets the state after this exchange from the island at position `donor`."""
        state = self._state
        outcome = outcome._replace(
            anchor={name: torch.empty_like(each) for name, each in state.anchor.items()},
            momentum={name: torch.empty_like(each) for name, each in state.momentum.items()},
        )
        parcels = []
        for lane in self._lanes:
            size = sum(torch.Size(cell.sizes).numel() for cell in lane.lane.cells)
            parcels.append(Parcel(lane, None, (), {donor: torch.empty(2 * size)}))
        carry(parcels, self._sync.streams)
        for parcel in parcels:
            anchor, momentum = parcel.gets[donor].chunk(2)
            state.scatter(anchor, outcome.anchor, parcel.lane.lane.cells)
            state.scatter(momentum, outcome.momentum, parcel.lane.lane.cells)
        fragment = outcome.exchange % self._sync.fragments
        digests = [
            _digest(Stepped(state.gather(outcome.anchor, cells), state.gather(outcome.momentum, cells)))
            for lane in self._lanes
            if (cells := self._cells(lane, fragment))
        ]
        return outcome._replace(received_bytes=_received_bytes(parcels), digest=_sum_of(digests))


def _digest(stepped: Stepped) -> Tensor:
    """What tells that two islands have not come to the same anchor and momentum: uint8 (DIGEST_BYTES,)."""
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for values in stepped:
        hashed.update((ctypes.c_char * values.nbytes).from_address(values.data_ptr()))
    return torch.frombuffer(bytearray(hashed.digest()), dtype=torch.uint8)


def _sum_of(digests: Sequence[Tensor]) -> int:
    """Modulo 2^64."""
    return sum(int.from_bytes(bytes(digest.tolist()), "big") for digest in digests) % 2**64


def _received_bytes(parcels: Sequence[Parcel]) -> int:
    return sum(got.nbytes for parcel in parcels for got in parcel.gets.values())
