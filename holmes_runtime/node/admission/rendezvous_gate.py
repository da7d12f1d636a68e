"""The gate to the rendezvous of islands: a loopback port on each node that forwards lines to the controller.

It accepts only processes of its own user. The lines are sent as messages of the agent and commands of the controller.
They thus use the existing connection, and no host needs a route to the controller.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable
from itertools import count
from threading import Lock, Thread

from holmes_runtime.config.islands.rendezvous_messages import EVERY_CONNECTION, MAX_LINE_BYTES, FromMeeting, ToMeeting
from holmes_runtime.node.admission.proof import NotProven
from holmes_runtime.node.admission.store_gate import GATE_ADDRESS, listening, see_user

PAUSE_S = 0.1
SEND_S = 5


class RendezvousGate:
    """One node's gate. `report` passes lines to the controller and may be called from any thread."""

    def __init__(self, report: Callable[[ToMeeting], None]) -> None:
        """Start to accept connections, in threads that end with the process. Raises OSError if it cannot listen."""
        self._report = report
        self._listener = listening(GATE_ADDRESS, 0)
        self._connections: dict[int, socket.socket] = {}
        self._lock = Lock()
        Thread(target=self._take, daemon=True).start()

    @property
    def port(self) -> int:
        """The port of the rendezvous for processes of this node, at GATE_ADDRESS."""
        return int(self._listener.getsockname()[1])

    def hand_on(self, command: FromMeeting) -> None:
        """Send a line to its connection. A connection that does not accept it is closed."""
        with self._lock:
            known = self._connections
            every = command.connection == EVERY_CONNECTION
            taking = [*known.values()] if every else [known[n] for n in (command.connection,) if n in known]
        for connection in taking:
            try:
                if not command.line:
                    raise BrokenPipeError
                connection.sendall(command.line.encode() + b"\n")
            except OSError:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _take(self) -> None:
        for number in count(1):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # it has been closed again, or too many files are open
                time.sleep(PAUSE_S)
                continue
            Thread(target=self._hear, args=(number, connection), daemon=True).start()

    def _hear(self, number: int, connection: socket.socket) -> None:
        """Report every line of a connection, and the end of the connection."""
        with connection, contextlib.suppress(OSError, NotProven, UnicodeDecodeError):
            see_user(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_S, 0))
            with self._lock:
                self._connections[number] = connection
            try:
                with connection.makefile("rb") as lines:
                    while (line := lines.readline(MAX_LINE_BYTES)).endswith(b"\n"):
                        self._report(ToMeeting(number, line[:-1].decode()))
            finally:
                with self._lock:
                    del self._connections[number]
                self._report(ToMeeting(number, ""))
