"""One rank's part in an outer sync, from arrival to verdict. It runs in its own thread."""

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

MAX_FAILURES = 5  # of one outer sync, each after islands agreed on a roster

Done = TypeVar("Done")


class SyncFailedError(RuntimeError):
    """An outer sync that did not take place."""


class TransferFailedError(RuntimeError):
    """A state transfer to this island, which is behind, that did not complete."""


class IslandSync:
    """The outer syncs of one rank. `start` numbers this start of its island; `fragments` assigns parameters."""

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
        self._opened, self._islands = -1, 0  # the round for which groups were made, and of how many islands
        self._senders: list[StateSender] = []
        self._is_free = Event()  # set while no outer sync is under way
        self._is_free.set()

    def run(self, contribution: Contribution) -> Outcome:
        """Take part in one outer sync. An island that is behind repeats it until it has received the state.

        Raises:
            RuntimeError: all `MAX_FAILURES` tries failed.
        """
        began_s = time.monotonic()
        # An island that is called arrives after its current step.
        grace_s = max(self._sync.grace_s, 2 * (contribution.step_s + LOOK_S))
        ahead_s = grace_s + self._limit_s + 2 * contribution.interval_s
        patience = Patience(grace_s, ahead_s)
        if contribution.exchange >= self._fragments.last:  # an island that misses the last ends with another model
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
            SyncFailedError: a round failed.
            TransferFailedError: this island is behind, and has not received the state.
        """
        joining: CatchUp | None = None
        try:
            while True:
                roster = self._rendezvous.meet(self._arrival(contribution, follows), patience)
                decided_s = time.monotonic()
                me = next(each for each in roster.all if each.island == self._sync.island)
                if me in roster.members:
                    return self._run_as_member(roster, decided_s, contribution)
                if joining is not None and me in roster.followers:
                    self._follow(joining, roster, decided_s)
                else:
                    if joining is not None:
                        joining.give_up()
                    joining = self._join(roster, decided_s, me)
                turn = joining.turn(roster.round_id)
                if turn == DONE:
                    return joining.outcome
                if turn != FOLLOW:
                    raise TransferFailedError(turn)
                follows = joining.outcome.lineage
        finally:
            if joining is not None:
                joining.give_up()

    def _join(self, roster: Roster, decided_s: float, me: Arrival) -> CatchUp:
        """Start to receive the state after an outer sync of the other islands.

        Raises:
            TransferFailedError: that outer sync failed.
        """
        if trouble := self._rendezvous.await_verdict(roster):
            raise TransferFailedError(trouble)
        return CatchUp(self._maker, roster, decided_s, me, self._state, self._sync, self._fragments)

    def _follow(self, joining: CatchUp, roster: Roster, decided_s: float) -> None:
        """Receive the messages of an outer sync of the other islands.

        Raises:
            TransferFailedError: that outer sync failed.
        """
        try:
            followed = self._take_part(roster, lambda: joining.receive(roster, decided_s, self._lane_cells(roster)))
        except SyncFailedError as error:
            raise TransferFailedError(str(error)) from error
        joining.keep(followed)

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
        ended = [each for each in self._senders if each.is_over(0.0)]
        self._senders = [each for each in self._senders if each not in ended]
        self._send_state(roster, outcome)
        return outcome._replace(sent_bytes=outcome.sent_bytes + sum(each.sent_bytes for each in ended))

    def _take_part(self, roster: Roster, act: Callable[[], Done]) -> Done:
        """Return the result of `act` once all participants are done.

        Raises:
            SyncFailedError: a participant failed.
        """
        result: Done | None = None
        try:
            self._open(roster)
            result, fault = self._watched(roster, act), None
        except (RuntimeError, ValueError) as error:
            fault = str(error)
        trouble = self._rendezvous.conclude(roster, fault)
        if trouble is not None:
            self._lanes, self._opened = [], -1
            raise SyncFailedError(trouble)
        assert result is not None
        return result

    def _watched(self, roster: Roster, act: Callable[[], Done]) -> Done:
        """Return the result of `act`, which runs in a thread because a wait in Gloo cannot be ended early.

        Raises:
            RuntimeError: the outer sync has failed elsewhere; the thread's result is dropped.
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
        """Make the lanes' groups, unless all participants have them from an earlier outer sync."""
        islands = roster.participants
        made = {each.groups for each in islands}
        if len(made) == 1 and self._opened >= 0 and self._islands == len(islands):
            return
        self._lanes = []
        position = self._position(islands)
        lanes = self._maker.lanes(islands, position)
        self._lanes = self._watched(roster, partial(self._maker.open, lanes, position, f"lanes/{roster.round_id}"))
        self._opened, self._islands = roster.round_id, len(islands)

    def _position(self, islands: Sequence[Arrival]) -> int:
        return [each.island for each in islands].index(self._sync.island)

    def _lane_cells(self, roster: Roster) -> list[LaneCells]:
        """Return the lanes that carry a part of the fragment, with their cells of it."""
        found = []
        for lane in self._lanes:
            if cells := [cell for cell in lane.lane.cells if self._fragments.has(cell.name, roster.exchange)]:
                found.append(LaneCells(lane, cells))
        return found

    def _step(self, outcome: Outcome, roster: Roster, contribution: Contribution) -> Outcome:
        """Take the outer step of this rank's part of the fragment. Followers receive the members' messages too."""
        state, sync, islands = self._state, self._sync, roster.participants
        codec: Codec = sync.codec if len(islands) > 1 else "none"  # a lone island sends nothing
        position, lanes = self._position(islands), self._lane_cells(roster)
        changes = [self._change(cells, contribution.parameters) for _, cells in lanes]
        means = MeanExchange(roster, position, codec, sync.streams).run([lane for lane, _ in lanes], changes)
        values = {name: torch.empty_like(piece) for name, piece in contribution.parameters.items()}
        outcome = outcome._replace(anchor=values, momentum={name: each.clone() for name, each in values.items()})
        if state.error is not None:
            outcome = outcome._replace(error={name: torch.empty_like(each) for name, each in values.items()})
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
        """Exchange tags of all messages and new states with the members, and check theirs.

        The first member sends its tags to followers too.

        Raises:
            RuntimeError: a message was altered in transit, or the states of members differ.
        """
        tags = SyncTags(self._maker, roster, self._state.frozen_weights)
        comparing, below = [], ", or the frozen weights below them" if self._state.frozen_weights else ""
        members = roster.member_positions
        for opened, mean, digest in zip(lanes, means, digests, strict=True):
            sends = {
                to: tags.tags(opened.lane, position, parts, digest)
                for to, parts in mean.sent.items()
                if position == members[0] or to in members
            }
            gets = {peer: torch.empty(TAGS_BYTES, dtype=torch.uint8) for peer in mean.received}
            comparing.append(LaneMessage(opened, sends, gets))
        carry(comparing, 1)
        for ((lane, _), _, gets), mean, digest in zip(comparing, means, digests, strict=True):
            for peer, theirs in gets.items():
                tags.check(lane, peer, mean.received[peer], theirs)
                if not tags.agree(lane, peer, digest, theirs):
                    raise RuntimeError(
                        f"outer sync {roster.exchange}: the state of rank {lane.owners[peer]} of island "
                        f"{roster.participants[peer].island} differs from that of this rank{below}"
                    )

    def _send_state(self, roster: Roster, outcome: Outcome) -> None:
        """Start to send the state of all fragments after this outer sync to the newcomers assigned to this island."""
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
        """Wait until each island that is receiving the state has all of it, or is lost."""
        for each in self._senders:
            if self._rank == 0 and not each.is_over(0.0):
                print(f"ends once island {each.newcomer.island} has received the state", flush=True)
            while not each.is_over(WATCH_S) and not self._rendezvous.standing().loss(each.newcomer):
                pass
