"""The exchange of pseudo-gradients in an outer sync: each member sends to everyone, or members reduce chunks.

With chunks, each member receives the others' values of its own chunk, and computes the mean in the order of islands.
Its own values enter the mean without the codec's rounding. It packs the mean and sends it to everyone. All unpack the
same bytes, including the sender.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from holmes_runtime.config.codec import OUTER_BLOCK, Codec, packed_bytes
from holmes_runtime.config.islands.reduction import is_chunked
from holmes_runtime.config.islands.roster import Roster
from holmes_runtime.outer.lane_exchange import LaneMessage, OpenLane, carry
from holmes_runtime.outer.outer_step import OutgoingGradient, arrived, outgoing, packed_mean

FP32_BYTES = 4

Parts = dict[int, tuple[Tensor, ...]]
"""By position: the messages sent to it or received from it, in order."""


class LaneChange(NamedTuple):
    """The values that an island contributes on a lane, fp32 (elements,); `error` is None without a codec."""

    anchor: Tensor
    parameters: Tensor
    error: Tensor | None

    def within(self, chunk: slice) -> LaneChange:
        """Return the values of a chunk."""
        error = None if self.error is None else self.error[chunk]
        return LaneChange(self.anchor[chunk], self.parameters[chunk], error)


class LaneMean(NamedTuple):
    """The mean of a lane as `parts` with their `tokens`, the remaining error, and all messages sent and received."""

    parts: list[Tensor]
    tokens: list[int]
    error: Tensor | None
    sent: Parts
    received: Parts


def chunks_of(elements: int, num_members: int) -> list[slice]:
    """Return by member the chunk of a lane that it reduces, in whole blocks. In a small lane some are empty."""
    blocks = -(-elements // OUTER_BLOCK)
    bounds = [min(elements, blocks * k // num_members * OUTER_BLOCK) for k in range(num_members + 1)]
    return [slice(first, last) for first, last in pairwise(bounds)]


def sizes_to_everyone(elements: int, num_members: int) -> list[int]:
    """Return by member the elements of a lane that it sends to everyone."""
    if not is_chunked(num_members):
        return [elements] * num_members
    return [chunk.stop - chunk.start for chunk in chunks_of(elements, num_members)]


def buffer_for(codec: Codec, elements: int) -> Tensor:
    """Return an uninitialized buffer for `elements` packed elements, uint8."""
    return torch.empty(packed_bytes(codec, elements, FP32_BYTES, OUTER_BLOCK), dtype=torch.uint8)


def mean_of(roster: Roster, packed: Sequence[Tensor], codec: Codec, elements: int) -> tuple[list[Tensor], list[int]]:
    """Return the mean of a lane, as parts with their tokens, from the bytes that each member sent to everyone."""
    sizes = sizes_to_everyone(elements, len(roster.members))
    values = [arrived(each, codec, size) for each, size in zip(packed, sizes, strict=True)]
    if is_chunked(len(roster.members)):
        return [torch.cat(values)], [1]
    return values, [each.tokens for each in roster.members]


class MeanExchange(NamedTuple):
    """The exchange of one outer sync as the member at `position` sees it."""

    roster: Roster
    position: int
    codec: Codec
    streams: int

    def run(self, lanes: Sequence[OpenLane], changes: Sequence[LaneChange]) -> list[LaneMean]:
        """Exchange the changes of all lanes at once; return their means. Raises RuntimeError if a peer is lost."""
        exchange = self._in_chunks if is_chunked(len(self.roster.members)) else self._to_everyone
        return exchange(lanes, changes)

    @property
    def _peers(self) -> list[int]:
        return [each for each in self.roster.member_positions if each != self.position]

    @property
    def _others(self) -> list[int]:
        return [each for each in range(len(self.roster.participants)) if each != self.position]

    def _to_everyone(self, lanes: Sequence[OpenLane], changes: Sequence[LaneChange]) -> list[LaneMean]:
        own = [outgoing(*change, self.codec) for change in changes]
        messages = [
            LaneMessage(
                lane,
                dict.fromkeys(self._others, mine.packed),
                {peer: torch.empty_like(mine.packed) for peer in self._peers},
            )
            for lane, mine in zip(lanes, own, strict=True)
        ]
        carry(messages, self.streams)
        tokens = [each.tokens for each in self.roster.members]
        return [
            LaneMean(self._values(mine.arrives, message), tokens, mine.error, *_bytes_of(message))
            for mine, message in zip(own, messages, strict=True)
        ]

    def _values(self, mine: Tensor, message: LaneMessage) -> list[Tensor]:
        """Return by member the received values of equal shape, including `mine`."""
        return [
            mine if each == self.position else arrived(message.gets[each], self.codec, len(mine))
            for each in self.roster.member_positions
        ]

    def _in_chunks(self, lanes: Sequence[OpenLane], changes: Sequence[LaneChange]) -> list[LaneMean]:
        members = self.roster.member_positions
        chunks = [dict(zip(members, chunks_of(len(change.anchor), len(members)), strict=True)) for change in changes]
        own = [
            {peer: outgoing(*change.within(of_lane[peer]), self.codec) for peer in self._peers}
            for change, of_lane in zip(changes, chunks, strict=True)
        ]
        to_reduce = [
            LaneMessage(
                lane,
                {peer: mine[peer].packed for peer in self._peers},
                {peer: buffer_for(self.codec, len(change.anchor[of_lane[self.position]])) for peer in self._peers},
            )
            for lane, mine, change, of_lane in zip(lanes, own, changes, chunks, strict=True)
        ]
        carry(to_reduce, self.streams)
        for mine, message, change, of_lane in zip(own, to_reduce, changes, chunks, strict=True):
            mine[self.position] = self._reduced(change.within(of_lane[self.position]), message)
        reduced = [
            LaneMessage(
                lane,
                dict.fromkeys(self._others, mine[self.position].packed),
                {peer: buffer_for(self.codec, len(change.anchor[of_lane[peer]])) for peer in self._peers},
            )
            for lane, mine, change, of_lane in zip(lanes, own, changes, chunks, strict=True)
        ]
        carry(reduced, self.streams)
        return [self._gathered(*of_lane) for of_lane in zip(own, changes, to_reduce, reduced, strict=True)]

    def _reduced(self, mine: LaneChange, message: LaneMessage) -> OutgoingGradient:
        """Return the packed mean of this rank's chunk."""
        exact = mine.parameters if self.codec == "none" else mine.anchor - mine.parameters
        tokens = [each.tokens for each in self.roster.members]
        return packed_mean(self._values(exact, message), tokens, mine.error, self.codec)

    def _gathered(
        self, own: dict[int, OutgoingGradient], change: LaneChange, to_reduce: LaneMessage, reduced: LaneMessage
    ) -> LaneMean:
        """Return the mean of a lane from the means of all chunks."""
        members = self.roster.member_positions
        packed = [own[each].packed if each == self.position else reduced.gets[each] for each in members]
        parts, tokens = mean_of(self.roster, packed, self.codec, len(change.anchor))
        left = [error for each in members if (error := own[each].error) is not None]
        return LaneMean(parts, tokens, torch.cat(left) if left else None, *_bytes_of(to_reduce, reduced))


def _bytes_of(*messages: LaneMessage) -> tuple[Parts, Parts]:
    """Return everything that a lane's messages sent and received, by position."""
    sent: Parts = {}
    received: Parts = {}
    for message in messages:
        for position, part in message.sends.items():
            sent[position] = (*sent.get(position, ()), part)
        for position, part in message.gets.items():
            received[position] = (*received.get(position, ()), part)
    return sent, received
