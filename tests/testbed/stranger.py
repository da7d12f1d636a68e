"""A process of another user who tries to join a run: `python -m tests.testbed.stranger` in a network namespace.

It is told where something listens, a line `KIND ADDRESS PORT` of its input each, and tries as KIND says. At the end of
its input it prints what came of every try, a line of JSON each. It holds what it has opened until then.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

NOBODY = 65534
CONNECT_S = 3.0
ANSWER_S = 3.0
SEQUENCE_NUMBERS = 8  # by which Gloo tells the members of a group apart, counted from 0


class Try(NamedTuple):
    """What came of a try: whether a connection was made and how many bytes came back, whether it was held for so long
    as the stranger waits for an answer, and whether the store let it write."""

    kind: str
    address: str
    port: int
    connected: bool
    held: bool
    answer_bytes: int
    joined: bool

    @property
    def address_and_port(self) -> tuple[str, int]:
        """Where it tried."""
        return self.address, self.port


class Stranger:
    """All tries of one process, each in a thread."""

    def __init__(self, store: Callable[..., Any]) -> None:
        self._store = store
        self._held: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.tries: list[Try] = []

    def start(self, kind: str, address: str, port: int) -> None:
        """Begin a try."""
        payloads = {
            "half-open": [b""],
            "garbage": [os.urandom(96)],
            "sequence": [struct.pack("=q", number) for number in range(SEQUENCE_NUMBERS)],
        }
        for payload in payloads.get(kind, [b""]):
            act = self._join_store if kind == "store" else self._send
            self._threads.append(threading.Thread(target=act, args=(kind, address, port, payload), daemon=True))
            self._threads[-1].start()

    def finish(self) -> None:
        """Wait for all that was begun."""
        for thread in self._threads:
            thread.join()

    def _send(self, kind: str, address: str, port: int, payload: bytes) -> None:
        connected, held, answer = False, False, 0
        with contextlib.suppress(OSError):
            one = socket.socket()
            self._held.append(one)
            one.settimeout(CONNECT_S)
            one.connect((address, port))
            connected = True
            one.settimeout(ANSWER_S)
            one.sendall(payload)
            try:
                answer = len(one.recv(4096))
            except TimeoutError:
                held = True
        self.tries.append(Try(kind, address, port, connected, held, answer, False))

    def _join_store(self, kind: str, address: str, port: int, _: bytes) -> None:
        """As a rank would: connect, and write what others will read."""
        joined = False
        with contextlib.suppress(RuntimeError):
            limit = timedelta(seconds=CONNECT_S)
            store = self._store(address, port, None, False, limit, wait_for_workers=False)
            store.set("stranger", "was here")
            joined = store.get("stranger") == b"was here"
        self.tries.append(Try(kind, address, port, joined, joined, 0, joined))


def main() -> None:
    """See the module."""
    from torch._C._distributed_c10d import TCPStore

    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    stranger = Stranger(TCPStore)
    print("ready", flush=True)
    for line in sys.stdin:
        kind, address, port = line.split()
        stranger.start(kind, address, int(port))
    stranger.finish()
    for each in stranger.tries:
        print(json.dumps(each._asdict()))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
