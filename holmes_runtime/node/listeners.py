"""Sockets with which nodes check, before any rank starts, that they can reach one another as planned."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Sequence
from threading import Thread

from holmes_runtime.config.messages import Destination, NodeInterface, SocketAddress
from holmes_runtime.config.node_config import NodeConfig
from holmes_runtime.node.admission.socket_filter import ANY_PORT, admit_only

PORTS_TRIED = 100
CONNECT_TIMEOUT_S = 6.0  # WireGuard repeats a lost handshake after 5 s (REKEY_TIMEOUT)
CONNECT_TRIES = 3
_BACKLOG = 1024


class Listeners:
    """A listening socket on each planned address of this node, and on node 0 the `rendezvous` socket for the gate."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._sockets: list[socket.socket] = []
        self.rendezvous: socket.socket | None = None

    def open(self, interfaces: dict[str, NodeInterface]) -> dict[str, SocketAddress]:
        """Listen on every planned interface. Return the addresses by interface.

        If the plan gives no address, it is taken from the node's `interfaces`.
        """
        addresses = {}
        for name, planned in self._config.addresses.items():
            address = planned or (interfaces[name].address if name in interfaces else None)
            listener = _listen(address, 0) if address else None
            if address and listener:
                self._sockets.append(listener)
                addresses[name] = SocketAddress(address, listener.getsockname()[1])
        return addresses

    def open_rendezvous(self) -> int | None:
        """Return the port of the rendezvous, open to the plan's nodes; None if none is free or node 0 has no ranks."""
        if self._config.node_rank == 0 and self._config.num_ranks > 0:
            first, nodes = self._config.master_port, self._config.node_addresses
            for port in range(first, min(first + PORTS_TRIED, 65536)):
                self.rendezvous = _listen(nodes[0], port, nodes)
                if self.rendezvous is not None:
                    return port
        return None

    def reach(self, destinations: tuple[Destination, ...]) -> tuple[str, ...]:
        """Try all destinations at once. Return a sentence for each one that was not reached."""
        faults: list[str] = []

        def try_one(destination: Destination) -> None:
            fault = _reach(destination)
            if fault is not None:
                faults.append(fault)

        tries = [Thread(target=try_one, args=(destination,)) for destination in destinations]
        for one in tries:
            one.start()
        for one in tries:
            one.join()
        return tuple(sorted(faults))

    def close(self) -> None:
        """Close all sockets but the rendezvous."""
        for listener in self._sockets:
            listener.close()


def _listen(address: str, port: int, admitted: Sequence[str] | None = None) -> socket.socket | None:
    """Return a listening socket, None if that address and port are unavailable. `admitted` are the allowed sources."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        if admitted is not None:
            admit_only(listener, [SocketAddress(each, ANY_PORT) for each in dict.fromkeys(admitted)])
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        return None
    return listener


def _reach(destination: Destination) -> str | None:
    """Return None when a connection is made. A refusal may be a lost race with a full queue, so it is tried again.

    So is silence: if both ends of a tunnel begin to talk at once, the first messages are lost and sent again later.
    """
    what, source, address, port = destination
    for _ in range(CONNECT_TRIES):
        try:
            socket.create_connection((address, port), CONNECT_TIMEOUT_S, (source, 0) if source else None).close()
        except OSError as error:
            reason = "no answer" if isinstance(error, TimeoutError) else os.strerror(error.errno or errno.EIO)
            fault = f"{what} at {address} port {port} cannot be reached from {source or 'here'}: {reason}"
            time.sleep(0.1)
        else:
            return None
    return fault
