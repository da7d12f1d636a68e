"""Take one rank through an outer sync, from arrival to verdict, in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from threading import Event, Thread
from typing import TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from holmes_runtime.config.codec import Codec
from holmes_runtime.config.islands.island_training import IslandTraining
from holmes_runtime.config.islands.membership_messages import DONE
from holmes_runtime.config.islands.roster import ANEW, Arrival, Patience, Roster
from holmes_runtime.outer.catch_up import CatchUp
from holmes_runtime.outer.island_weights import Values
from holmes_runtime.outer.lane_exchange import LaneCells, LaneMaker, LaneMessage, OpenLane, carry
from holmes_runtime.outer.lanes import Cell, Fragments
from holmes_runtime.outer.mean_exchange import LaneChange, LaneMean, MeanExchange
from holmes_runtime.outer.outcome import Contribution, Outcome
from holmes_runtime.outer.outer_state import OuterState
from holmes_runtime.outer.outer_step import digest_of, outer_step, sum_of
from holmes_runtime.outer.rendezvous import FOLLOW, LOOK_S, WATCH_S, Rendezvous
from holmes_runtime.outer.state_transfer import StateSender
from holmes_runtime.outer.sync_tags import TAGS_BYTES, SyncTags

MAX_FAILURES = 5  # per outer sync, counting only tries for which islands agreed on a roster

Done = TypeVar("Done")


class SyncFailedError(RuntimeError):
    """An outer sync failed for all participants."""


class TransferFailedError(RuntimeError):
    """This island is behind, and did not receive the state of the others."""


class IslandSync:
    """One rank's outer syncs. `start` is the number of its island's start; `fragments` names their parameters."""

    def __init__(
        self,
        training: IslandTraining,
        rank: int,
        state: OuterState,
        rendezvous: Rendezvous,
        store: Store,
        start: int,
        fragments: Fragments,
    ) -> None:
        self._sync, self._rank, self._state = training.outer_sync, rank, state
        self._rendezvous, self._fragments = rendezvous, fragments
        self._start, self._num_ranks, self._limit_s = start, training.num_ranks, training.timeout_s
        limit, interface = timedelta(seconds=training.timeout_s), self._sync.interfaces[rank]
        self._maker = LaneMaker(rendezvous, store, rank, limit, interface, self._sync.streams)
        self._lanes: list[OpenLane] = []
        self._opened, self._islands = -1, 0  # the round for which `_lanes` were opened, and how many islands share them
        self._senders: list[StateSender] = []
        self._is_free = Event()  # set while no outer sync is under way
        self._is_free.set()

    def run(self, contribution: Contribution) -> Outcome:
        """Take part in one outer sync, repeated if it fails. An island that is behind catches up instead.

        Raises:
            RuntimeError: All `MAX_FAILURES` tries failed.
        """
        began_s = time.monotonic()
        # An island that is called early arrives only after its current step.
        grace_s = max(self._sync.grace_s, 2 * (contribution.step_s + LOOK_S))
        ahead_s = grace_s + self._limit_s + 2 * contribution.interval_s
        patience = Patience(grace_s, ahead_s)
        if contribution.exchange >= self._fragments.last:  # an island that misses the last one ends with another model
            patience = Patience(ahead_s, ahead_s, lost_s=grace_s)
        follows, trouble = "", ""
        for _ in range(MAX_FAILURES):
            self._is_free.clear()
            try:
                outcome = self._try_once(contribution, patience, follows)
            except SyncFailedError as error:
                trouble = f"outer sync {contribution.exchange} of the islands is repeated: {error}"
            except TransferFailedError as error:
                follows, trouble = ANEW, f"the state transfer from the other islands is repeated: {error}"
            else:
                return outcome._replace(duration_s=time.monotonic() - began_s)
            finally:
                self._is_free.set()
            if self._rank == 0:
                print(trouble, flush=True)
        raise RuntimeError(f"outer sync {contribution.exchange} failed {MAX_FAILURES} times; the last time: {trouble}")

    def _try_once(self, contribution: Contribution, patience: Patience, follows: str) -> Outcome:
        """Take part in rendezvous rounds until one has an outcome.

        Raises:
            SyncFailedError: A round failed.
            TransferFailedError: This island is behind, and has not received the state.
        """
        catch_up: CatchUp | None = None
        try:
            while True:
                roster = self._rendezvous.meet(self._arrival(contribution, follows), patience)
                decided_s = time.monotonic()
                me = next(arrival for arrival in roster.all if arrival.island == self._sync.island)
                if me in roster.members:
                    return self._run_as_member(roster, decided_s, contribution)
                if catch_up is not None and me in roster.followers:
                    self._follow(catch_up, roster, decided_s)
                else:
                    if catch_up is not None:
                        catch_up.give_up()
                    catch_up = self._start_catch_up(roster, decided_s, me)
                turn = catch_up.turn(roster.round_id)
                if turn == DONE:
                    return catch_up.outcome
                if turn != FOLLOW:
                    raise TransferFailedError(turn)
                follows = catch_up.outcome.lineage
        finally:
            if catch_up is not None:
                catch_up.give_up()

    def _start_catch_up(self, roster: Roster, decided_s: float, me: Arrival) -> CatchUp:
        """Wait for an outer sync of the other islands, and start receiving their state after it.

        Raises:
            TransferFailedError: That outer sync failed.
        """
        if trouble := self._rendezvous.await_verdict(roster):
            raise TransferFailedError(trouble)
        return CatchUp(self._maker, roster, decided_s, me, self._state, self._sync, self._fragments)

    def _follow(self, catch_up: CatchUp, roster: Roster, decided_s: float) -> None:
        """Receive the messages that the other islands exchange in an outer sync.

        Raises:
            TransferFailedError: That outer sync failed.
        """
        try:
            followed = self._take_part(roster, lambda: catch_up.receive(roster, decided_s, self._lane_cells(roster)))
        except SyncFailedError as error:
            raise TransferFailedError(str(error)) from error
        catch_up.keep(followed)

    def _arrival(self, contribution: Contribution, follows: str) -> Arrival:
        return Arrival(
            self._sync.island,
            self._start,
            self._num_ranks,
            contribution.exchange,
            contribution.lineage,
            contribution.is_behind or follows != "",
            contribution.tokens,
            contribution.early,
            contribution.interval_s,
            self._opened,
            follows,
        )

    def _run_as_member(self, roster: Roster, decided_s: float, contribution: Contribution) -> Outcome:
        before = Outcome.of(roster, decided_s, has_joined=False)
        outcome = self._take_part(roster, partial(self._step, before, roster, contribution))
        ended = [sender for sender in self._senders if sender.is_over(0.0)]
        self._senders = [sender for sender in self._senders if sender not in ended]
        self._send_state(roster, outcome)
        return outcome._replace(sent_bytes=outcome.sent_bytes + sum(sender.sent_bytes for sender in ended))

    def _take_part(self, roster: Roster, act: Callable[[], Done]) -> Done:
        """Open the lanes, run `act`, and return its result once all participants are done.

        Raises:
            SyncFailedError: A participant failed.
        """
        result: Done | None = None
        try:
            self._open(roster)
            result, fault = self._run_watched(roster, act), None
        except (RuntimeError, ValueError) as error:
            fault = str(error)
        trouble = self._rendezvous.conclude(roster, fault)
        if trouble is not None:
            self._lanes, self._opened = [], -1
            raise SyncFailedError(trouble)
        assert result is not None
        return result

    def _run_watched(self, roster: Roster, act: Callable[[], Done]) -> Done:
        """Run `act` in a thread, because a wait in Gloo cannot be ended early, and return its result.

        Raises:
            RuntimeError: The outer sync has failed elsewhere. The thread is left to itself, and its result is dropped.
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
            if trouble := self._rendezvous.trouble(roster):
                raise RuntimeError(trouble)

    def _open(self, roster: Roster) -> None:
        """Open the lanes with their groups, unless all participants still have them from an earlier outer sync."""
        islands = roster.participants
        rounds = {arrival.groups for arrival in islands}
        if len(rounds) == 1 and self._opened >= 0 and self._islands == len(islands):
            return
        self._lanes = []
        position = self._position(islands)
        lanes = self._maker.lanes(islands, position)
        self._lanes = self._run_watched(roster, partial(self._maker.open, lanes, position, f"lanes/{roster.round_id}"))
        self._opened, self._islands = roster.round_id, len(islands)

    def _position(self, islands: Sequence[Arrival]) -> int:
        return [arrival.island for arrival in islands].index(self._sync.island)

    def _lane_cells(self, roster: Roster) -> list[LaneCells]:
        """Return the lanes that carry a part of the fragment, each with its cells of the fragment."""
        lane_cells = []
        for lane in self._lanes:
            if cells := [cell for cell in lane.lane.cells if self._fragments.has(cell.name, roster.exchange)]:
                lane_cells.append(LaneCells(lane, cells))
        return lane_cells

    def _step(self, outcome: Outcome, roster: Roster, contribution: Contribution) -> Outcome:
        """Take the outer step on this rank's part of the fragment. The members send their messages to followers too."""
        state, sync, islands = self._state, self._sync, roster.participants
        codec: Codec = sync.codec if len(islands) > 1 else "none"  # a lone island sends nothing
        position, lanes = self._position(islands), self._lane_cells(roster)
        changes = [self._change(cells, contribution.parameters) for _, cells in lanes]
        means = MeanExchange(roster, position, codec, sync.streams).run([lane for lane, _ in lanes], changes)
        values = {name: torch.empty_like(piece) for name, piece in contribution.parameters.items()}
        outcome = outcome._replace(anchor=values, momentum={name: piece.clone() for name, piece in values.items()})
        if state.error is not None:
            outcome = outcome._replace(error={name: torch.empty_like(piece) for name, piece in values.items()})
        rate, factor = self._fragments.rule(roster.exchange, sync)
        digests = []
        for (_, cells), change, mean in zip(lanes, changes, means, strict=True):
            momentum = state.gather(state.momentum, cells)
            stepped = outer_step(change.anchor, momentum, mean.parts, mean.tokens, codec, rate, factor)
            digests.append(digest_of(stepped))
            state.scatter(stepped.anchor, outcome.anchor, cells)
            state.scatter(stepped.momentum, outcome.momentum, cells)
            if outcome.error is not None and mean.error is not None:
                state.scatter(mean.error, outcome.error, cells)
        self._compare([lane for lane, _ in lanes], means, digests, position, roster)
        sent_bytes, received_bytes = (
            sum(part.nbytes for each in moved for parts in each.values() for part in parts)
            for moved in ([mean.sent for mean in means], [mean.received for mean in means])
        )
        return outcome._replace(sent_bytes=sent_bytes, received_bytes=received_bytes, digest=sum_of(digests))

    def _change(self, cells: Sequence[Cell], parameters: Values) -> LaneChange:
        state = self._state
        error = state.gather(state.error, cells) if state.error is not None else None
        return LaneChange(state.gather(state.anchor, cells), state.gather(parameters, cells), error)

    def _compare(
        self,
        lanes: Sequence[OpenLane],
        means: Sequence[LaneMean],
        digests: Sequence[Tensor],
        position: int,
        roster: Roster,
    ) -> None:
        """Exchange tags with the other members, and check that their messages and new states match these.

        The first member sends its tags to followers too.

        Raises:
            RuntimeError: A message was altered in transit, or the members' states differ.
        """
        tags = SyncTags(self._maker, roster, self._state.frozen_weights)
        or_frozen = ", or the frozen weights below them" if self._state.frozen_weights else ""
        messages, members = [], roster.member_positions
        for opened, mean, digest in zip(lanes, means, digests, strict=True):
            sends = {
                to: tags.tags(opened.lane, position, parts, digest)
                for to, parts in mean.sent.items()
                if position == members[0] or to in members
            }
            gets = {peer: torch.empty(TAGS_BYTES, dtype=torch.uint8) for peer in mean.received}
            messages.append(LaneMessage(opened, sends, gets))
        carry(messages, 1)
        for ((lane, _), _, gets), mean, digest in zip(messages, means, digests, strict=True):
            for peer, theirs in gets.items():
                tags.check(lane, peer, mean.received[peer], theirs)
                if not tags.agree(lane, peer, digest, theirs):
                    raise RuntimeError(
                        f"outer sync {roster.exchange}: the state of rank {lane.owners[peer]} of island "
                        f"{roster.participants[peer].island} differs from that of this rank{or_frozen}"
                    )

    def _send_state(self, roster: Roster, outcome: Outcome) -> None:
        """Start sending all fragments' state after this outer sync to the newcomers that this island is to serve."""
        state = self._state
        after = {**state.anchor, **outcome.anchor}, {**state.momentum, **outcome.momentum}
        for newcomer in roster.newcomers:
            if roster.giver(newcomer).island == self._sync.island:
                try:
                    sender = StateSender(self._maker, roster, newcomer, state, after, self._is_free)
                except (RuntimeError, ValueError) as error:  # fails the newcomer, not this island
                    print(f"cannot send the state to island {newcomer.island}: {error}", flush=True)
                else:
                    self._senders.append(sender)

    def finish(self) -> None:
        """Wait until every island to which this one is sending the state has all of it, or is lost."""
        for sender in self._senders:
            if self._rank == 0 and not sender.is_over(0.0):
                print(f"ends once island {sender.newcomer.island} has received the state", flush=True)
            while not sender.is_over(WATCH_S) and not self._rendezvous.standing().loss(sender.newcomer):
                pass
