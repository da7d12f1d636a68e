"""The gate to torchrun's store, which has no authentication of its own: no other connection reaches the store.

torchrun and the ranks of a node connect to their agent's gate on the loopback. It accepts only processes of its own
user. The gates of other nodes connect to the first node's gate and prove the run's secret before anything is carried.
The data is in frames that an outsider can neither forge nor change unnoticed. The store listens on the first node's
loopback, where the kernel admits only the sockets that the gate holds.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections import deque
from collections.abc import Callable
from threading import BoundedSemaphore, Lock, Thread

from holmes_runtime.config.messages import CHANGED, SocketAddress
from holmes_runtime.node.admission.carrier import Carrier, SocketSide
from holmes_runtime.node.admission.keyed_frames import FrameKeys
from holmes_runtime.node.admission.own_sockets import all_connections
from holmes_runtime.node.admission.proof import NotProven, demand_proof, prove
from holmes_runtime.node.admission.socket_filter import admit_only

STORE_ADDRESS = "127.0.0.1"
GATE_ADDRESS = "127.0.0.2"  # all of 127.0.0.0/8 is the loopback; torch's store looks for itself at one port
CONNECT_S = 5.0
PROOF_S = 10.0
FIRST_NODE_S = 300.0  # another node may start this much earlier than the first
AT_ONCE = 256
LAST_ADMITTED = 32  # their first packets may still be under way
MAX_FILES = 1 << 16
PORTS_TRIED = 100
_BACKLOG = 1024


class StoreDoor:
    """The socket on which the store listens, and the only access to it."""

    def __init__(self) -> None:
        self.listener = _bound(STORE_ADDRESS, 0)
        admit_only(self.listener, ())
        self.listener.listen(_BACKLOG)
        self._admitted: deque[socket.socket] = deque()
        self._lock = Lock()

    @property
    def port(self) -> int:
        """The port on which the store listens."""
        return int(self.listener.getsockname()[1])

    def connect(self) -> socket.socket:
        """Connect from a port that no other process can have while it is open. Raises OSError."""
        connection = _bound(STORE_ADDRESS, 0)
        with self._lock:
            self._admitted.append(connection)
            if len(self._admitted) > LAST_ADMITTED:
                self._admitted.popleft()
            self._admit()
        connection.settimeout(CONNECT_S)
        try:
            connection.connect((STORE_ADDRESS, self.port))
        except OSError:
            self.close(connection)
            raise
        return connection

    def close(self, connection: socket.socket) -> None:
        """Close the connection, and stop admitting its port."""
        with self._lock:
            if connection in self._admitted:
                self._admitted.remove(connection)
                self._admit()
            connection.close()

    def _admit(self) -> None:
        admit_only(self.listener, [SocketAddress(*each.getsockname()) for each in self._admitted])


class StoreGate:
    """One node's gate. `entrance` is the first node's socket for the gates of other nodes; None on those nodes.

    `fault` is set once data from another node was changed in transit.
    """

    def __init__(
        self, nodes: tuple[str, ...], node_rank: int, master_port: int, secret: bytes, entrance: socket.socket | None
    ) -> None:
        self._here, self._first = nodes[node_rank], (nodes[0], master_port)
        self._secret, self._entrance = secret, entrance
        self._door: StoreDoor | None = None
        if entrance is None:
            self._listener = listening(GATE_ADDRESS, 0)
        else:
            self._door, self._listener = _open_both()
        self.fault: str | None = None
        self._carrier = Carrier(self._door.close if self._door else socket.socket.close, self._note_change)
        self._free = BoundedSemaphore(AT_ONCE)

    @property
    def port(self) -> int:
        """The store's port for processes of this node, at GATE_ADDRESS."""
        return int(self._listener.getsockname()[1])

    @property
    def store_descriptor(self) -> int | None:
        """The descriptor of the socket on which the store listens; None except on the first node."""
        return self._door.listener.fileno() if self._door else None

    def open(self) -> None:
        """Start to carry connections, in threads that end with the process."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most if 0 <= most < MAX_FILES else MAX_FILES, most))
        self._carrier.start()
        Thread(target=self._take, args=(self._listener, see_user), daemon=True).start()
        if self._entrance is not None:
            Thread(target=self._take, args=(self._entrance, self._see_proof), daemon=True).start()

    def _take(self, listener: socket.socket, see: Callable[[socket.socket], FrameKeys | None]) -> None:
        """Accept connections, and carry the ones for which `see` does not raise."""
        listener.settimeout(None)
        while True:
            self._free.acquire()
            try:
                connection, _ = listener.accept()
            except OSError:  # it has been closed again, or too many files are open
                self._free.release()
                time.sleep(0.1)
                continue
            Thread(target=self._let_in, args=(connection, see), daemon=True).start()

    def _let_in(self, connection: socket.socket, see: Callable[[socket.socket], FrameKeys | None]) -> None:
        try:
            side = SocketSide(connection, see(connection))
            self._carrier.connect(side, SocketSide(self._door.connect()) if self._door else self._to_first_node())
        except (OSError, NotProven):
            connection.close()
        finally:
            self._free.release()

    def _note_change(self, address: str) -> None:
        self.fault = f"data of the rendezvous or its store, from {address} to {self._here}, {CHANGED}"

    def _see_proof(self, connection: socket.socket) -> FrameKeys:
        return demand_proof(connection, self._secret, PROOF_S)

    def _to_first_node(self) -> SocketSide:
        """Return a proven connection to the first node's gate, where thousands may queue at once. Raises OSError."""
        deadline = time.monotonic() + FIRST_NODE_S
        while True:
            try:
                connection = socket.create_connection(self._first, CONNECT_S, (self._here, 0))
                break
            except TimeoutError:  # its queue was full
                if time.monotonic() > deadline:
                    raise
        try:
            return SocketSide(connection, prove(connection, self._secret, FIRST_NODE_S))
        except NotProven:
            connection.close()
            raise


def see_user(connection: socket.socket) -> None:
    """Raise NotProven if the connection is from a process of another user."""
    ends = SocketAddress(*connection.getpeername()), SocketAddress(*connection.getsockname())
    if not any((each.local, each.remote) == ends and each.uid == os.getuid() for each in all_connections()):
        raise NotProven("it belongs to another user")


def _open_both() -> tuple[StoreDoor, socket.socket]:
    """Return the store's door and the gate's socket, on the same port. Raises OSError if no port is free on both."""
    for tries_left in range(PORTS_TRIED, 0, -1):
        door = StoreDoor()
        try:
            return door, listening(GATE_ADDRESS, door.port)
        except OSError:
            door.listener.close()
            if tries_left == 1:
                raise
    raise AssertionError


def _bound(address: str, port: int) -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        one.bind((address, port))
    except OSError:
        one.close()
        raise
    return one


def listening(address: str, port: int) -> socket.socket:
    """Return a socket that listens there. Raises OSError."""
    listener = _bound(address, port)
    listener.listen(_BACKLOG)
    return listener
