"""State transfer: ranks of one island send anchor and momentum to a joining island while all others train.

The state is sent in pieces, so that outer syncs of the sender need not wait for all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from threading import Event, Thread

import torch
from torch import Tensor

from holmes_runtime.config.islands.roster import Arrival, Roster
from holmes_runtime.config.messages import CHANGED
from holmes_runtime.node.admission.keyed_frames import FrameAltered
from holmes_runtime.outer.island_weights import Values
from holmes_runtime.outer.lane_exchange import LaneMaker, LaneMessage, OpenLane, PendingTransfers, carry, post
from holmes_runtime.outer.outer_state import OuterState
from holmes_runtime.outer.outer_step import digest_of

PIECE = 1 << 16  # fp32 numbers: 0.1 s at 20 Mbit/s
POSTED = 64  # receives that a newcomer posts ahead, so that no piece costs a round trip
MIN_SHARE_S = 1.0  # longest wait for an outer sync to end: on a slow wire one is always under way
GIVER, NEWCOMER = 0, 1  # positions in their lanes

Pieces = Iterator[list[tuple[OpenLane, Tensor]]]


class StateSender:
    """A transfer from this rank: anchor and momentum `after` an outer sync, copied first and sent while `is_free`.

    Raises:
        ValueError: the islands do not train one model.
    """

    def __init__(
        self,
        maker: LaneMaker,
        roster: Roster,
        newcomer: Arrival,
        state: OuterState,
        after: Sequence[Values],
        is_free: Event,
    ) -> None:
        self._maker, self._is_free = maker, is_free
        self._name, self.newcomer = _name(roster, newcomer), newcomer
        self._lanes = maker.lanes([roster.giver(newcomer), newcomer], GIVER)
        self._states = [torch.cat([state.gather(values, lane.cells) for values in after]) for lane in self._lanes]
        self.sent_bytes = 0
        self._thread = Thread(target=self._run, name="islands' state", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        states, self._states = self._states, []
        try:
            opened = self._maker.open(self._lanes, GIVER, self._name)
            for pieces in _pieces(opened, states):
                self._is_free.wait(MIN_SHARE_S)
                messages = [LaneMessage(lane, {NEWCOMER: piece}, {}) for lane, piece in pieces]
                self.sent_bytes += carry(messages, self._maker.streams)
            _compare(self._maker, opened, states, GIVER, self._name)
        except RuntimeError as error:
            print(f"island {self.newcomer.island} has not received the whole state: {error}", flush=True)

    def is_over(self, limit_s: float) -> bool:
        """Return True if the transfer ends within `limit_s`."""
        self._thread.join(limit_s)
        return not self._thread.is_alive()


class StateReceiver:
    """The state that this rank of a newcomer receives, by lane: anchor, then momentum, fp32.

    Raises:
        ValueError: the islands do not train one model.
    """

    def __init__(self, maker: LaneMaker, roster: Roster, newcomer: Arrival) -> None:
        self._maker, self._name = maker, _name(roster, newcomer)
        self.lanes = maker.lanes([roster.giver(newcomer), newcomer], NEWCOMER)
        self.states = [torch.empty(2 * lane.elements) for lane in self.lanes]

    def wait(self, is_given_up: Event) -> None:
        """Wait until everything has arrived or the transfer is given up. Raises RuntimeError if the sender is lost."""
        opened = self._maker.open(self.lanes, NEWCOMER, self._name)
        ahead = deque[PendingTransfers]()
        for pieces in _pieces(opened, self.states):
            ahead.append(post([LaneMessage(lane, {}, {GIVER: piece}) for lane, piece in pieces], self._maker.streams))
            if len(ahead) > POSTED:
                ahead.popleft().wait()
            if is_given_up.is_set():
                return
        for posted in ahead:
            posted.wait()
        _compare(self._maker, opened, self.states, NEWCOMER, self._name)


def _name(roster: Roster, newcomer: Arrival) -> str:
    """Return the prefix under which both ends make their groups."""
    return f"state/{roster.round_id}/{newcomer.island}"


def _pieces(opened: Sequence[OpenLane], states: Sequence[Tensor]) -> Pieces:
    """Yield, one after another, the pieces of all lanes that are sent at once."""
    for first in range(0, max(map(len, states), default=0), PIECE):
        yield [
            (lane, state[first : first + PIECE])
            for lane, state in zip(opened, states, strict=True)
            if first < len(state)
        ]


def _compare(maker: LaneMaker, opened: Sequence[OpenLane], states: Sequence[Tensor], me: int, name: str) -> None:
    """Check that the other end has the same state. Raises FrameAltered if it has not."""
    peer = NEWCOMER if me == GIVER else GIVER
    digests = [digest_of([state]) for state in states]
    tags = [maker.tag(lane.lane, name, me, digest) for lane, digest in zip(opened, digests, strict=True)]
    theirs = [torch.empty_like(tag) for tag in tags]
    ends = zip(opened, tags, theirs, strict=True)
    carry([LaneMessage(lane, {peer: tag}, {peer: other}) for lane, tag, other in ends], 1)
    for lane, digest, other in zip(opened, digests, theirs, strict=True):
        if not torch.equal(maker.tag(lane.lane, name, peer, digest), other):
            owner = lane.lane.owners[peer]
            raise FrameAltered(f"the state sent between this rank and rank {owner} of the other island {CHANGED}")
