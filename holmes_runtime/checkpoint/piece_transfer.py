"""Bytes from rank to rank, many at once, a chunk at a time: what files are copied by and boxes are asked for by."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


class Outgoing(NamedTuple):
    """`size_bytes` for rank `target`; `fill` writes the next of them into the memory it is given."""

    target: int
    size_bytes: int
    fill: Callable[[memoryview], None]


class Incoming(NamedTuple):
    """`size_bytes` from rank `source`; `take` is given the next of them, in memory that is used again."""

    source: int
    size_bytes: int
    take: Callable[[memoryview], None]


class Pace:
    """Spreads an exchange evenly over `duration_s`, until somebody waits for it."""

    def __init__(self, duration_s: float) -> None:
        self._duration_s, self._hurry = duration_s, Event()

    def hurry(self) -> None:
        """From now on the exchange goes as fast as it can."""
        self._hurry.set()

    def hold(self, began_s: float, part: float) -> None:
        """Returns when so great a part of it may be done."""
        self._hurry.wait(max(0.0, began_s + part * self._duration_s - time.monotonic()))


def exchange(
    outgoing: Sequence[Outgoing], incoming: Sequence[Incoming], group: ProcessGroup, chunk_bytes: int, pace: Pace
) -> None:
    """Sends and receives all, a chunk of each at a time. Both ends list what they exchange in the same order.

    No order of ranks can hang: a rank waits for chunk n of its peers only, and one that is at the least n of all finds
    its peers there, or past it. `fill` and `take` must not raise: the peers would wait.
    """
    sizes = [each.size_bytes for each in outgoing] + [each.size_bytes for each in incoming]
    buffers = [bytearray(min(chunk_bytes, size)) for size in sizes]
    num_rounds = max((-(-size // chunk_bytes) for size in sizes), default=0)
    began_s = time.monotonic()
    for turn in range(num_rounds):
        works, received = [], []
        for taker, buffer in zip(incoming, buffers[len(outgoing) :], strict=True):
            if size := max(0, min(chunk_bytes, taker.size_bytes - turn * chunk_bytes)):
                works.append(dist.irecv(_tensor(buffer, size), src=taker.source, group=group))
                received.append((taker, memoryview(buffer)[:size]))
        for giver, buffer in zip(outgoing, buffers, strict=False):
            if size := max(0, min(chunk_bytes, giver.size_bytes - turn * chunk_bytes)):
                giver.fill(memoryview(buffer)[:size])
                works.append(dist.isend(_tensor(buffer, size), dst=giver.target, group=group))
        for work in works:
            assert work is not None
            work.wait()
        for taker, chunk in received:
            taker.take(chunk)
        pace.hold(began_s, (turn + 1) / num_rounds)


def _tensor(buffer: bytearray, size: int) -> Tensor:
    """The first `size` bytes of the buffer, (size,), uint8."""
    return torch.frombuffer(buffer, dtype=torch.uint8, count=size)
