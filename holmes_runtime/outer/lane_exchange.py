"""The groups over which one rank exchanges with ranks of other islands, a group a lane, and what travels on them."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from holmes_runtime.admission.keyed_frames import tag_of
from holmes_runtime.comm.group_opening import GlooInterface, make_gloo
from holmes_runtime.comm.streams import LEAST_PART
from holmes_runtime.outer.decision import Coming
from holmes_runtime.outer.lanes import Cell, Lane, lanes_of
from holmes_runtime.outer.meeting import Meeting


class OpenLane(NamedTuple):
    """A lane, and the Gloo group of its owners, in their order; None where this rank is the only one."""

    lane: Lane
    group: Any


class LaneCells(NamedTuple):
    """A lane, and those of its cells that travel at once."""

    lane: OpenLane
    cells: list[Cell]


class LaneMaker(NamedTuple):
    """Makes the lanes of rank `rank` of an island, on one interface of its host."""

    meeting: Meeting
    store: Store
    rank: int
    timeout: timedelta
    interface: str
    streams: int

    def lanes(self, islands: Sequence[Coming], position: int) -> list[Lane]:
        """Its lanes with these `islands`, of which its own is at that position.

        Raises ValueError if they do not train one model.
        """
        layouts = [self.meeting.layout(each.island, each.start, each.num_ranks) for each in islands]
        return lanes_of(layouts, position, self.rank)

    def tag(self, lane: Lane, name: str, position: int, *parts: Tensor) -> Tensor:
        """The tag, uint8 (TAG_BYTES,), of what the owner at `position` sends on a lane; `name` tells when and why.

        Both ends know the length of all parts.
        """
        where = json.dumps([name, lane.owners, position]).encode() + b"\0"
        return torch.frombuffer(bytearray(tag_of(self.meeting.key, where, *map(_bytes_of, parts))), dtype=torch.uint8)

    def open(self, lanes: Sequence[Lane], position: int, name: str) -> list[OpenLane]:
        """Makes the groups of the lanes; `name` tells them from those made before.

        All ranks make theirs by owners, the least first, so that no order of them can hang. Raises RuntimeError naming
        the interface if one cannot be made.
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


class Parcel(NamedTuple):
    """What one lane sends, to the owners at the positions `to`, and gets, by position. Tensors of one dimension."""

    lane: OpenLane
    sends: Tensor | None
    to: tuple[int, ...]
    gets: dict[int, Tensor]


class Posted(NamedTuple):
    """What is under way; neither it nor what it fills may be freed before."""

    works: list[Any]
    parcels: Sequence[Parcel]

    def wait(self) -> int:
        """Until all of it has left, and come; the bytes that came. Raises RuntimeError if a peer is gone."""
        for work in self.works:
            work.wait()
        return sum(target.nbytes for parcel in self.parcels for target in parcel.gets.values())


def post(parcels: Iterable[Parcel], streams: int) -> Posted:
    """Begins to send and to receive all of them at once."""
    posted = Posted([], list(parcels))
    for (_, group), sends, to, gets in posted.parcels:
        for position, target in gets.items():
            posted.works.extend(group.recv([part], position, tag) for tag, part in enumerate(_parts(target, streams)))
        if sends is not None:
            parts = list(enumerate(_parts(sends, streams)))
            posted.works.extend(group.send([part], position, tag) for position in to for tag, part in parts)
    return posted


def carry(parcels: Sequence[Parcel], streams: int) -> int:
    """Sends and receives all of them at once; the bytes this rank has sent. Raises RuntimeError if a peer is gone."""
    post(parcels, streams).wait()
    return sum(len(each.to) * each.sends.nbytes for each in parcels if each.sends is not None)


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))


def _parts(tensor: Tensor, streams: int) -> Sequence[Tensor]:
    """The parts in which it travels, each on a connection of its own; the same at both ends."""
    return tensor.chunk(max(1, min(streams, tensor.numel() // LEAST_PART)))
