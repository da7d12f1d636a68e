"""The process groups between one rank and ranks of other islands, one per lane, and the messages on them."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from holmes_runtime.comm.group_opening import GlooInterface, make_gloo
from holmes_runtime.comm.streams import parts_of
from holmes_runtime.config.islands.roster import Arrival
from holmes_runtime.node.admission.keyed_frames import tag_of
from holmes_runtime.outer.lanes import Cell, Lane, lanes_of
from holmes_runtime.outer.rendezvous import Rendezvous


class OpenLane(NamedTuple):
    """A lane, and the Gloo group of its owners in order; None if this rank is the only owner."""

    lane: Lane
    group: Any


class LaneCells(NamedTuple):
    """A lane, and the cells of it that one message carries."""

    lane: OpenLane
    cells: list[Cell]


class LaneMaker(NamedTuple):
    """Makes the lanes of rank `rank` of an island, on one interface of its host."""

    rendezvous: Rendezvous
    store: Store
    rank: int
    timeout: timedelta
    interface: str
    streams: int

    def lanes(self, islands: Sequence[Arrival], position: int) -> list[Lane]:
        """Return this rank's lanes with these `islands`; its own is at `position`.

        Raises:
            ValueError: the islands do not train one model.
        """
        layouts = [self.rendezvous.layout(each.island, each.start, each.num_ranks) for each in islands]
        return lanes_of(layouts, position, self.rank)

    def tag(self, lane: Lane, name: str, position: int, *parts: Tensor) -> Tensor:
        """Return the tag, uint8 (TAG_BYTES,), of a message from the owner at `position`; `name` is unique to it.

        Both ends know the lengths of all parts.
        """
        where = json.dumps([name, lane.owners, position]).encode() + b"\0"
        return torch.frombuffer(
            bytearray(tag_of(self.rendezvous.key, where, *map(_bytes_of, parts))), dtype=torch.uint8
        )

    def open(self, lanes: Sequence[Lane], position: int, name: str) -> list[OpenLane]:
        """Make the groups of the lanes under `name`, which is unique to these groups.

        All ranks make their groups in the order of owners, so that no circle of groups can wait for one another.

        Raises:
            RuntimeError: a group cannot be made; names the interface.
        """
        opened = []
        for lane in lanes:
            group = None
            if len(lane.owners) > 1:
                owners = "-".join(map(str, lane.owners))
                options = GlooInterface(f"islands/{owners}", self.interface, self.streams)
                place = PrefixStore(f"{name}/{owners}", self.store)
                group = make_gloo(place, position, len(lane.owners), self.timeout, options)
            opened.append(OpenLane(lane, group))
        return opened


class LaneMessage(NamedTuple):
    """The messages of one lane to other owners, and the buffers for theirs, by position. All are one-dimensional."""

    lane: OpenLane
    sends: dict[int, Tensor]
    gets: dict[int, Tensor]


class PendingTransfers(NamedTuple):
    """Transfers in progress; keeps their buffers alive."""

    works: list[Any]
    messages: Sequence[LaneMessage]

    def wait(self) -> None:
        """Wait until all is sent and received. Raises RuntimeError if a peer is lost."""
        for work in self.works:
            work.wait()


def post(messages: Iterable[LaneMessage], streams: int) -> PendingTransfers:
    """Start to send and receive all messages at once."""
    posted = PendingTransfers([], list(messages))
    for (_, group), sends, gets in posted.messages:
        for position, target in gets.items():
            posted.works.extend(group.recv([part], position, tag) for tag, part in enumerate(_parts(target, streams)))
        for position, sent in sends.items():
            posted.works.extend(group.send([part], position, tag) for tag, part in enumerate(_parts(sent, streams)))
    return posted


def carry(messages: Sequence[LaneMessage], streams: int) -> int:
    """Send and receive all messages at once; return the bytes sent. Raises RuntimeError if a peer is lost."""
    post(messages, streams).wait()
    return sum(sent.nbytes for message in messages for sent in message.sends.values())


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor."""
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))


def _parts(tensor: Tensor, streams: int) -> Sequence[Tensor]:
    """Return the parts of a tensor, as many as `parts_of`; none if it is empty."""
    return parts_of(tensor, streams) if tensor.numel() else ()
