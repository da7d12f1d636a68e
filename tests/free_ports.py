"""Ports for servers of tests, where layers run in several processes at once."""

from __future__ import annotations

import itertools
import os
import socket

FIRST, LAST = 10_000, 29_000  # below those that a kernel gives to connections and to servers without a port
OF_A_PROCESS = 50

_numbers = itertools.count()


def free_port() -> int:
    """Return a port of 127.0.0.1 on which no process listens, from those that no other process of tests tries.

    The port is free for a server that starts later: asked for any, the kernel would soon give the same one away again.
    """
    first = FIRST + os.getpid() * OF_A_PROCESS % (LAST - FIRST)
    while True:
        port = first + next(_numbers) % OF_A_PROCESS
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
