"""A two-way proxy that relays data between many pairs of sockets in one thread.

Traffic to other hosts is framed and authenticated, with keys per connection. It is not encrypted.
"""

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
    """One side of a relayed pair. `keys` authenticate its frames; None if the traffic stays on this host."""

    socket: socket.socket
    keys: FrameKeys | None = None


class _Endpoint:
    """One socket of a pair. While it still has `pending` bytes to send, the other socket is not read."""

    def __init__(self, side: SocketSide) -> None:
        self.socket = side.socket
        self.peer = ""
        self.reader = self.writer = None
        if side.keys is not None:
            with contextlib.suppress(OSError):  # the peer has already disconnected
                self.peer = str(side.socket.getpeername()[0])
            self.reader, self.writer = FrameReader(side.keys.received), FrameWriter(side.keys.sent)
        self.other = self  # replaced in `connect`
        self.pending = b""

    @property
    def events(self) -> int:
        reads = 0 if self.other.pending else selectors.EVENT_READ
        return reads | (selectors.EVENT_WRITE if self.pending else 0)


class Carrier:
    """Relays data between many pairs of sockets.

    When either socket reaches EOF or fails, `close_socket` is called for both: half-open connections are not kept. If a
    frame was altered in transit, `on_altered` is called with its sender's IP address, and the pair is then closed.
    Neither callback may call `connect`.
    """

    def __init__(self, close_socket: Callable[[socket.socket], None], on_altered: Callable[[str], None]) -> None:
        self._close_socket, self._on_altered = close_socket, on_altered
        self._selector = selectors.DefaultSelector()
        self._lock = Lock()

    def start(self) -> None:
        """Start relaying in a daemon thread."""
        Thread(target=self._relay, daemon=True).start()

    def connect(self, one: SocketSide, another: SocketSide) -> None:
        """Start relaying between these two sockets. They become non-blocking."""
        pair = _Endpoint(one), _Endpoint(another)
        pair[0].other, pair[1].other = pair[1], pair[0]
        for endpoint in pair:
            endpoint.socket.settimeout(0.0)
            endpoint.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            for endpoint in pair:
                self._selector.register(endpoint.socket, endpoint.events, endpoint)

    def _relay(self) -> None:
        while True:
            ready = self._selector.select()
            with self._lock:
                for key, events in ready:
                    self._serve(key.data, events)

    def _serve(self, endpoint: _Endpoint, events: int) -> None:
        if endpoint.socket.fileno() < 0:
            return  # already closed with its partner, earlier in this batch
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(endpoint)
            if events & selectors.EVENT_READ:
                self._receive(endpoint)
        except FrameAltered:
            self._on_altered(endpoint.peer)
            self._close_pair(endpoint)
        except OSError:
            self._close_pair(endpoint)

    def _receive(self, endpoint: _Endpoint) -> None:
        data = endpoint.socket.recv(MAX_FRAME_BYTES)
        if not data:
            self._close_pair(endpoint)
            return
        if endpoint.reader is not None:
            data = endpoint.reader.take(data)
        if data and endpoint.other.writer is not None:
            data = endpoint.other.writer.frame(data)
        if data:
            endpoint.other.pending = data
            self._flush(endpoint.other)

    def _flush(self, endpoint: _Endpoint) -> None:
        with contextlib.suppress(BlockingIOError):
            endpoint.pending = endpoint.pending[endpoint.socket.send(endpoint.pending) :]
        for either in (endpoint, endpoint.other):
            self._update_interest(either)

    def _update_interest(self, endpoint: _Endpoint) -> None:
        is_registered = endpoint.socket in self._selector.get_map()
        if endpoint.events == 0 and is_registered:
            self._selector.unregister(endpoint.socket)
        elif endpoint.events and is_registered:
            self._selector.modify(endpoint.socket, endpoint.events, endpoint)
        elif endpoint.events:
            self._selector.register(endpoint.socket, endpoint.events, endpoint)

    def _close_pair(self, endpoint: _Endpoint) -> None:
        for either in (endpoint, endpoint.other):
            if either.socket in self._selector.get_map():
                self._selector.unregister(either.socket)
            self._close_socket(either.socket)
