"""A two-way proxy between pairs of sockets, many pairs in one thread. Bytes for other hosts are in keyed frames."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable
from threading import Lock, Thread
from typing import NamedTuple

from holmes_runtime.node.admission.keyed_frames import (
    MAX_FRAME_BYTES,
    FrameAltered,
    FrameKeys,
    FrameReader,
    FrameWriter,
)


class SocketSide(NamedTuple):
    """A socket to carry data to and from. `keys` are for its frames; None for traffic within this host."""

    socket: socket.socket
    keys: FrameKeys | None = None


class _End:
    """One socket of a pair. While `waiting` holds bytes not yet sent to it, the other socket is not read."""

    def __init__(self, side: SocketSide) -> None:
        self.socket = side.socket
        self.peer = ""
        self.reader = self.writer = None
        if side.keys is not None:
            with contextlib.suppress(OSError):  # it has been closed again
                self.peer = str(side.socket.getpeername()[0])
            self.reader, self.writer = FrameReader(side.keys.received), FrameWriter(side.keys.sent)
        self.other = self
        self.waiting = b""

    @property
    def events(self) -> int:
        reads = 0 if self.other.waiting else selectors.EVENT_READ
        return reads | (selectors.EVENT_WRITE if self.waiting else 0)


class Carrier:
    """Carries data between many pairs of sockets. When one socket of a pair ends, `close` is called for both.

    A pair is also closed if a frame was changed in transit, after `changed` is called with the frame's origin.
    """

    def __init__(self, close: Callable[[socket.socket], None], changed: Callable[[str], None]) -> None:
        self._close, self._changed = close, changed
        self._selector = selectors.DefaultSelector()
        self._lock = Lock()

    def start(self) -> None:
        """Start to carry data, in a thread that ends with the process."""
        Thread(target=self._carry, daemon=True).start()

    def join(self, one: SocketSide, another: SocketSide) -> None:
        """Carry bytes between these two sockets."""
        ends = _End(one), _End(another)
        ends[0].other, ends[1].other = ends[1], ends[0]
        for end in ends:
            end.socket.settimeout(0.0)
            end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            for end in ends:
                self._selector.register(end.socket, end.events, end)

    def _carry(self) -> None:
        while True:
            found = self._selector.select()
            with self._lock:
                for key, events in found:
                    self._move(key.data, events)

    def _move(self, end: _End, events: int) -> None:
        if end.socket.fileno() < 0:
            return  # closed a moment ago, with its other end
        try:
            if events & selectors.EVENT_WRITE:
                self._give(end)
            if events & selectors.EVENT_READ:
                self._take(end)
        except FrameAltered:
            self._changed(end.peer)
            self._end(end)
        except OSError:
            self._end(end)

    def _take(self, end: _End) -> None:
        data = end.socket.recv(MAX_FRAME_BYTES)
        if not data:
            self._end(end)
            return
        if end.reader is not None:
            data = end.reader.take(data)
        if data and end.other.writer is not None:
            data = end.other.writer.frame(data)
        if data:
            end.other.waiting = data
            self._give(end.other)

    def _give(self, end: _End) -> None:
        with contextlib.suppress(BlockingIOError):
            end.waiting = end.waiting[end.socket.send(end.waiting) :]
        for each in (end, end.other):
            self._listen(each)

    def _listen(self, end: _End) -> None:
        known = end.socket in self._selector.get_map()
        if end.events == 0 and known:
            self._selector.unregister(end.socket)
        elif end.events and known:
            self._selector.modify(end.socket, end.events, end)
        elif end.events:
            self._selector.register(end.socket, end.events, end)

    def _end(self, end: _End) -> None:
        for each in (end, end.other):
            if each.socket in self._selector.get_map():
                self._selector.unregister(each.socket)
            self._close(each.socket)
