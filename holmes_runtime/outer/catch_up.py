"""Catch up one rank of a joining island: it receives the state while the others train, then replays outer steps.

During the transfer, the rank keeps the messages of outer syncs. It then takes the same outer steps on the received
state, and so ends with the members' state.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from threading import Event, Thread
from typing import NamedTuple

import torch
from torch import Tensor

from holmes_runtime.config.islands.roster import Arrival, Roster
from holmes_runtime.config.run_settings import OuterSync
from holmes_runtime.outer.lane_exchange import LaneCells, LaneMaker, LaneMessage, carry
from holmes_runtime.outer.lanes import Cell, Fragments, Lane
from holmes_runtime.outer.mean_exchange import buffer_for, mean_of, sizes_to_everyone
from holmes_runtime.outer.outcome import Outcome
from holmes_runtime.outer.outer_state import OuterState
from holmes_runtime.outer.outer_step import digest_of, outer_step
from holmes_runtime.outer.rendezvous import LOOK_S
from holmes_runtime.outer.state_transfer import StateReceiver
from holmes_runtime.outer.sync_tags import TAGS_BYTES, SyncTags


class ReplayedSync(NamedTuple):
    """An outer sync to replay. `decided_s` is the time of its roster on this rank's clock.

    Per lane: `cells` are its cells of the fragment, `packed` the bytes that each member sent to everyone, and `tags`
    those that the first member sent.
    """

    roster: Roster
    decided_s: float
    lanes: list[Lane]
    cells: list[list[Cell]]
    packed: list[list[Tensor]]
    tags: list[Tensor]


class CatchUp:
    """The state that a newcomer's rank receives after an outer sync, and the outer syncs to replay on it."""

    def __init__(
        self,
        maker: LaneMaker,
        roster: Roster,
        decided_s: float,
        newcomer: Arrival,
        state: OuterState,
        sync: OuterSync,
        fragments: Fragments,
    ) -> None:
        self._maker, self._state, self._sync, self._fragments = maker, state, sync, fragments
        self._giver, self._num_ranks = roster.giver(newcomer), newcomer.num_ranks
        self._receiver = Future[StateReceiver]()
        self._is_given_up = Event()
        self._followed: list[ReplayedSync] = []
        anchor, momentum = ({name: torch.empty_like(piece) for name, piece in state.anchor.items()} for _ in range(2))
        self.outcome = Outcome.of(roster, decided_s, has_joined=True)._replace(anchor=anchor, momentum=momentum)
        self._has_state = False
        Thread(target=self._receive_state, args=(roster, newcomer), name="islands' state", daemon=True).start()

    def _receive_state(self, roster: Roster, newcomer: Arrival) -> None:
        try:
            receiver = StateReceiver(self._maker, roster, newcomer)
            receiver.wait(self._is_given_up)
            self._receiver.set_result(receiver)
        except Exception as error:
            self._receiver.set_exception(error)

    def give_up(self) -> None:
        """Make the transfer end early, if it is still under way."""
        self._is_given_up.set()

    def receive(self, roster: Roster, decided_s: float, lanes: Sequence[LaneCells]) -> ReplayedSync:
        """Receive the messages that members exchange in an outer sync on these lanes.

        Raises:
            FrameAltered: The first member's tags show that its message was altered.
        """
        positions = roster.member_positions
        messages, tags = [], []
        for lane, cells in lanes:
            sizes = sizes_to_everyone(sum(cell.elements for cell in cells), len(positions))
            gets = {peer: buffer_for(self._sync.codec, size) for peer, size in zip(positions, sizes, strict=True)}
            messages.append(LaneMessage(lane, {}, gets))
            tags.append(torch.empty(TAGS_BYTES, dtype=torch.uint8))
        carry(messages, self._sync.streams)
        first = positions[0]
        carry([LaneMessage(lane, {}, {first: buffer}) for (lane, _), buffer in zip(lanes, tags, strict=True)], 1)
        expected = SyncTags(self._maker, roster, self._state.frozen_weights)
        for message, theirs in zip(messages, tags, strict=True):
            expected.check(message.lane.lane, first, [message.gets[first]], theirs)
        packed = [[message.gets[position] for position in positions] for message in messages]
        cells_by_lane = [cells for _, cells in lanes]
        return ReplayedSync(roster, decided_s, [lane.lane for lane, _ in lanes], cells_by_lane, packed, tags)

    def keep(self, followed: ReplayedSync) -> None:
        """Keep an outer sync that has taken place, to replay it later."""
        before = self.outcome
        self._followed.append(followed)
        received_bytes = sum(message.nbytes for messages in followed.packed for message in messages)
        self.outcome = Outcome.of(followed.roster, followed.decided_s, has_joined=True)._replace(
            anchor=before.anchor, momentum=before.momentum, received_bytes=before.received_bytes + received_bytes
        )

    def turn(self, round_id: int) -> str:
        """Wait for the turn that all ranks of the island take after that round: DONE, FOLLOW, or FAILED and why."""
        rendezvous, has_reported = self._maker.rendezvous, False
        while True:
            if not has_reported:
                if wait([self._receiver], LOOK_S).done:
                    rendezvous.report_state(round_id, self._num_ranks, self._catch_up())
                    has_reported = True
                elif lost := rendezvous.standing().loss(self._giver):
                    rendezvous.report_state(round_id, self._num_ranks, lost)
                    has_reported = True
            rendezvous.follow_next_sync(round_id)
            if turn := rendezvous.turn(round_id, LOOK_S if has_reported else 0.0):
                return turn

    def _catch_up(self) -> str | None:
        """Replay the kept outer syncs on the received state; return the error, if any."""
        try:
            if not self._has_state:
                self._take(self._receiver.result())
            for followed in self._followed:
                self._step(followed)
        except (RuntimeError, ValueError) as error:
            return str(error)
        self._followed = []
        return None

    def _take(self, receiver: StateReceiver) -> None:
        for lane, state in zip(receiver.lanes, receiver.states, strict=True):
            for pieces, received in zip((self.outcome.anchor, self.outcome.momentum), state.chunk(2), strict=True):
                self._state.scatter(received, pieces, lane.cells)
        received_bytes = self.outcome.received_bytes + sum(state.nbytes for state in receiver.states)
        self.outcome = self.outcome._replace(received_bytes=received_bytes)
        receiver.states.clear()
        self._has_state = True

    def _step(self, followed: ReplayedSync) -> None:
        """Replay one outer step, and check the new state against the first member's tags."""
        state, sync, (anchor, momentum) = self._state, self._sync, (self.outcome.anchor, self.outcome.momentum)
        rate, factor = self._fragments.rule(followed.roster.exchange, sync)
        tags = SyncTags(self._maker, followed.roster, state.frozen_weights)
        first = followed.roster.member_positions[0]
        by_lane = zip(followed.lanes, followed.cells, followed.packed, followed.tags, strict=True)
        for lane, cells, packed, theirs in by_lane:
            before = state.gather(anchor, cells), state.gather(momentum, cells)
            mean = mean_of(followed.roster, packed, sync.codec, len(before[0]))
            stepped = outer_step(*before, *mean, sync.codec, rate, factor)
            if not tags.agree(lane, first, digest_of(stepped), theirs):
                raise RuntimeError(f"replaying outer sync {followed.roster.exchange} leads to another state")
            state.scatter(stepped.anchor, anchor, cells)
            state.scatter(stepped.momentum, momentum, cells)
