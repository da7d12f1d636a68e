"""Mutual authentication of a Gloo group's members. Gloo itself accepts any process that connects to it first.

Members meet in the store, which only this run's processes can reach. Each member publishes its listening addresses, and
then the source addresses it will connect from; the kernel admits only these. Once all are connected, no further
connection is admitted. Each member publishes a digest of its connections: every connection must be held at both ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from threading import Lock
from typing import Any, TypeVar

from holmes_runtime.config.messages import SocketAddress
from holmes_runtime.node.admission.own_sockets import LISTENS, OwnSocket, all_connections, own_connections, own_sockets
from holmes_runtime.node.admission.socket_filter import ANY_PORT, admit_only

Device = TypeVar("Device")
TRIES = 10
_DIGEST_BYTES = 32
_MAKING = Lock()  # a new device is recognized by its new sockets


def closed_device(make: Callable[[], Device]) -> tuple[Device, socket.socket]:
    """Return the device from `make`, which listens on one socket, and that socket, which admits no connection yet.

    If a connection arrived between listening and closing, the device is discarded. Threads make devices one at a time.

    Raises:
        RuntimeError: A connection arrived each time, or the number of listening sockets is not one.
    """
    for _ in range(TRIES):
        with ExitStack() as looked_at:
            device, made = _made(make, looked_at)
            listeners = [each for each in made if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)]
            if len(listeners) != 1:
                raise RuntimeError(f"Gloo should have opened one listening socket, but opened {len(listeners)}")
            (listener,) = listeners
            admit_only(listener, ())
            address = _address(listener)
            came = any(_address(each) == address for each in made if each is not listener)
            if not came and not any(each.local == address and each.state != LISTENS for each in all_connections()):
                return device, socket.socket(fileno=listener.detach())  # a `dup` would make Gloo's block
    raise RuntimeError(f"another process connected to each of {TRIES} sockets as it began to listen")


def _made(make: Callable[[], Device], looked_at: ExitStack) -> tuple[Device, list[socket.socket]]:
    """Return the device from `make` and the IP sockets opened meanwhile. Other threads may have opened some of them."""
    with _MAKING:
        before = own_sockets()
        device = make()
        numbers = {inode: number for inode, number in own_sockets().items() if inode not in before}
    found = []
    for inode, number in numbers.items():
        with suppress(OSError):  # another thread's, already closed
            one = looked_at.enter_context(socket.socket(fileno=os.dup(number)))
            if os.fstat(one.fileno()).st_ino == inode:  # else the number has been reused
                found.append(one)
    return device, [each for each in found if each.family in (socket.AF_INET, socket.AF_INET6)]


def _address(one: socket.socket) -> SocketAddress:
    return SocketAddress(*one.getsockname()[:2])


class GroupMembers:
    """The members of a group as known to this rank, number `rank` of `size`, from the group's own `store`."""

    def __init__(self, store: Any, rank: int, size: int, listeners: Sequence[socket.socket]) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._listeners = listeners
        self._addresses: frozenset[SocketAddress] = frozenset()

    def admit(self) -> None:
        """Admit only the addresses from which the members' hosts can reach this one."""
        listening = self._exchange_lists("listens", [_address(listener) for listener in self._listeners])
        self._addresses = frozenset(SocketAddress(*each) for each in listening)
        sources = {source for each in self._addresses if (source := _source_to(each)) is not None}
        admitted = sorted(set(self._exchange_lists("comes from", sorted(sources))))
        for listener in self._listeners:
            admit_only(listener, [SocketAddress(each, ANY_PORT) for each in admitted])

    def check(self) -> None:
        """Admit no more connections. Raises RuntimeError if a connection of the group is not held at both ends."""
        for listener in self._listeners:
            admit_only(listener, ())
        mine = [each for each in own_connections() if each.local in self._addresses or each.remote in self._addresses]
        if any(_sum_of(self._exchange("holds", _sum_of(map(_digest, mine))))):
            ends = ", ".join(sorted({f"{each.remote.address} port {each.remote.port}" for each in mine}))
            raise RuntimeError(
                "a connection of the group is held at one end only, so a process outside the group made it; this "
                f"rank's go to {ends}: look for the others on those hosts (`ss -tnp`)"
            )

    def _exchange_lists(self, what: str, mine: Sequence[Any]) -> list[Any]:
        """Return the lists of all members, concatenated."""
        return [each for said in self._exchange(what, json.dumps(mine).encode()) for each in json.loads(said)]

    def _exchange(self, what: str, mine: bytes) -> list[bytes]:
        """Return the message of every member, in rank order."""
        self._store.set(f"holmes/{what}/{self._rank}", mine)
        keys = [f"holmes/{what}/{rank}" for rank in range(self._size)]
        if self._store.has_extended_api():
            return list(self._store.multi_get(keys))
        return [self._store.get(key) for key in keys]


def _source_to(where: SocketAddress) -> str | None:
    """Return this host's source address for a connection to `where`; None if there is no route."""
    with socket.socket(socket.AF_INET6 if ":" in where.address else socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(where)  # sends nothing
        except OSError:
            return None
        return str(one.getsockname()[0])


def _digest(connection: OwnSocket) -> bytes:
    """Return a digest that is the same at both ends."""
    ends = sorted((connection.local, connection.remote))
    return hashlib.sha256(json.dumps(ends).encode()).digest()


def _sum_of(digests: Iterable[bytes]) -> bytes:
    """Return the exclusive or: zero if each digest occurs twice."""
    total = 0
    for digest in digests:
        total ^= int.from_bytes(digest, "big")
    return total.to_bytes(_DIGEST_BYTES, "big")
