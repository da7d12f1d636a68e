"""Transfers between ranks, many at once, chunk by chunk: for copies of files and for requested boxes.

A chunk ends with the size of the next, which its sender chooses. Small chunks let training traffic pass between them;
large ones compensate for high latency. A tag follows, so a chunk that was changed in transit is never used.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from holmes_runtime.comm.keyed_exchange import KeyedExchange
from holmes_runtime.node.admission.keyed_frames import TAG_BYTES
from holmes_runtime.node.admission.own_sockets import JUST_MS, bytes_on_way, is_moving

MIN_BYTES, MAX_BYTES = 1 << 16, 1 << 22  # of a chunk; the first chunk has the minimum
SIZE_BYTES = 8  # of the number that comes after its content
LOOK_EVERY_S = JUST_MS / 1e3  # between checks of training traffic, which counts as moving for this long


class OutgoingPiece(NamedTuple):
    """`size_bytes` for rank `target`. `fill` writes the next of them to the memory it is given."""

    target: int
    size_bytes: int
    fill: Callable[[memoryview], None]


class Incoming(NamedTuple):
    """`size_bytes` from rank `source`. `take` gets the next of them, in memory that is reused."""

    source: int
    size_bytes: int
    take: Callable[[memoryview], None]


class TransferPace:
    """Spreads an exchange evenly over `duration_s`, until `hurry` is called.

    Traffic on the `connections` of training goes first, and chunks stay small because its next message may wait for
    one. Both end when the rest, at its even pace, would end after `latest_s`.
    """

    def __init__(
        self, duration_s: float = 0.0, latest_s: float = 0.0, connections: Sequence[socket.socket] = ()
    ) -> None:
        self._duration_s, self._latest_s, self._connections = duration_s, latest_s, connections
        self._hurry, self._began_s = Event(), time.monotonic()
        self._chunk_bytes, self._way_bytes = MIN_BYTES, MAX_BYTES

    def begin(self) -> None:
        """Record that the exchange begins now."""
        self._began_s = time.monotonic()
        self._way_bytes = min(MAX_BYTES, max(map(bytes_on_way, self._connections), default=MAX_BYTES))

    def hurry(self) -> None:
        """Let the exchange go as fast as it can from now on."""
        self._hurry.set()

    def hold(self, part: float) -> int:
        """Wait until more than this part of the exchange may be done, and return the bytes of the next chunks.

        Chunks grow as long as only the transfer itself takes time; while training sends, only as much as needed.
        """
        due_s = self._began_s + part * self._duration_s
        early_s = due_s - time.monotonic()
        was_early = early_s > 0 and not self._hurry.wait(early_s)
        until_s = due_s + self._latest_s - self._duration_s
        has_yielded = self._yield(until_s)
        if was_early:
            self._chunk_bytes //= 2
        elif not has_yielded:
            self._chunk_bytes *= 2
        # During training, at most the bytes that fill the path: its next message may wait for a whole chunk.
        goes_first = self._hurry.is_set() or time.monotonic() >= until_s
        most_bytes = MAX_BYTES if goes_first else self._way_bytes
        self._chunk_bytes = max(MIN_BYTES, min(self._chunk_bytes, most_bytes))
        return self._chunk_bytes

    def _yield(self, until_s: float) -> bool:
        """Wait until training neither sends nor receives. Return True if it did."""
        has_yielded = False
        while time.monotonic() < until_s and not self._hurry.is_set() and any(map(is_moving, self._connections)):
            has_yielded = True
            self._hurry.wait(LOOK_EVERY_S)
        return has_yielded


def exchange(
    outgoing: Sequence[OutgoingPiece], incoming: Sequence[Incoming], group: ProcessGroup, pace: TransferPace
) -> None:
    """Send and receive everything, one chunk of each transfer at a time. Both ends list transfers in the same order.

    `group` has all ranks. No order of ranks can deadlock: a rank waits only for chunk n of its peers, and the peers of
    the rank with the smallest n have reached it or passed it. `fill` and `take` must not raise, as the peers would
    wait. Raises FrameAltered, after which this rank must end.
    """
    keyed, me = KeyedExchange(group), dist.get_rank(group)
    given = [_Chunks(each.size_bytes, keyed, me, each.target) for each in outgoing]
    taken = [_Chunks(each.size_bytes, keyed, each.source, me) for each in incoming]
    total_bytes = sum(each.size_bytes for each in outgoing)
    pace.begin()
    while any(each.left_bytes for each in (*given, *taken)):
        works: list[Work | None] = []
        arriving = [(taker, chunks) for taker, chunks in zip(incoming, taken, strict=True) if chunks.left_bytes]
        for taker, chunks in arriving:
            works.append(dist.irecv(chunks.next(), src=taker.source, group=group))
        left_bytes = sum(chunks.left_bytes for chunks in given)
        if left_bytes:
            chunk_bytes = pace.hold(1 - left_bytes / total_bytes)
        for giver, chunks in zip(outgoing, given, strict=True):
            if chunks.left_bytes:
                tensor = chunks.next()
                giver.fill(chunks.content)
                chunks.announce(chunk_bytes)
                works.append(dist.isend(tensor, dst=giver.target, group=group))
        for work in works:
            assert work is not None
            work.wait()
        for taker, chunks in arriving:
            chunks.check()
            taker.take(chunks.content)
            chunks.follow()


class _Chunks:
    """The current transfer from rank `source` to rank `target`: its current chunk, and the size of the next one."""

    def __init__(self, size_bytes: int, keyed: KeyedExchange, source: int, target: int) -> None:
        self.left_bytes, self._next_bytes = size_bytes, MIN_BYTES
        self._keyed, self._source, self._target, self._number = keyed, source, target, 0
        self._buffer, self.content, self._size = bytearray(), memoryview(b""), memoryview(b"")
        self._tag = memoryview(b"")

    def next(self) -> Tensor:
        """Return the next chunk's memory: `content`, size and tag, (content + SIZE_BYTES + TAG_BYTES,), uint8."""
        self._number += 1
        content_bytes = min(self._next_bytes, self.left_bytes)
        self.left_bytes -= content_bytes
        whole_bytes = content_bytes + SIZE_BYTES + TAG_BYTES
        if len(self._buffer) < whole_bytes:
            self._buffer = bytearray(whole_bytes)
        whole = memoryview(self._buffer)[:whole_bytes]
        self.content, self._size = whole[:content_bytes], whole[content_bytes:-TAG_BYTES]
        self._tag = whole[-TAG_BYTES:]
        return torch.frombuffer(self._buffer, dtype=torch.uint8, count=whole_bytes)

    def announce(self, next_bytes: int) -> None:
        """Append the size of the next chunk to this one's content, and tag both."""
        self._next_bytes = next_bytes
        self._size[:] = next_bytes.to_bytes(SIZE_BYTES, "little")
        self._tag[:] = self._keyed.tag(self._source, self._place, self.content, self._size)

    def check(self) -> None:
        """Raise FrameAltered if this chunk is not what its source sent."""
        self._keyed.check(self._source, self._place, self._tag, self.content, self._size)

    @property
    def _place(self) -> str:
        return f"part {self._number} of files for rank {self._target}"

    def follow(self) -> None:
        """Read the size of the next chunk, limited to the maximum, whatever the peer sent."""
        self._next_bytes = min(MAX_BYTES, max(1, int.from_bytes(self._size, "little")))
