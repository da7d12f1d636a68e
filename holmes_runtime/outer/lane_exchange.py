"""The groups over which one rank exchanges with ranks of other islands, a group a lane, and what travels on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from holmes_runtime.comm.group_opening import GlooInterface, make_gloo
from holmes_runtime.comm.streams import LEAST_PART
from holmes_runtime.outer.lanes import Lane


class OpenLane(NamedTuple):
    """A lane, and the Gloo group of its owners, in their order; None where this rank is the only one."""

    lane: Lane
    group: Any


def open_lanes(
    lanes: Sequence[Lane], position: int, name: str, store: Store, timeout: timedelta, interface: str, streams: int
) -> list[OpenLane]:
    """Makes the groups of this rank, that of the island at `position`; `name` tells them from those made before.

    All ranks make theirs by owners, the least first, so that no order of them can hang. Raises RuntimeError naming the
    interface if one cannot be made.
    """
    opened = []
    for lane in lanes:
        group = None
        if len(lane.owners) > 1:
            owners = "-".join(map(str, lane.owners))
            options = GlooInterface(f"islands/{owners}", interface, streams)
            place = PrefixStore(f"{name}/{owners}", store)
            group = make_gloo(place, position, len(lane.owners), timeout, options)
        opened.append(OpenLane(lane, group))
    return opened


class Parcel(NamedTuple):
    """What one lane sends, to the owners at the positions `to`, and gets, by position. Tensors of one dimension."""

    lane: OpenLane
    sends: Tensor | None
    to: tuple[int, ...]
    gets: dict[int, Tensor]


def carry(parcels: Iterable[Parcel], streams: int) -> int:
    """Sends and receives all of them at once; the bytes this rank has sent. Raises RuntimeError if a peer is gone."""
    works: list[Any] = []
    sent_bytes = 0
    for (_, group), sends, to, gets in parcels:
        for position, target in gets.items():
            works += (group.recv([part], position, tag) for tag, part in enumerate(_parts(target, streams)))
        if sends is not None:
            for position in to:
                works += (group.send([part], position, tag) for tag, part in enumerate(_parts(sends, streams)))
                sent_bytes += sends.nbytes
    for work in works:
        work.wait()
    return sent_bytes


def _parts(tensor: Tensor, streams: int) -> Sequence[Tensor]:
    """The parts in which it travels, each on a connection of its own; the same at both ends."""
    return tensor.chunk(max(1, min(streams, tensor.numel() // LEAST_PART)))
