"""The islands' rendezvous as a torch store, shared by all islands and outliving each of them.

Gloo groups can be made on it under a PrefixStore. A round trip passes through the agents and the controller, and takes
0.1 s to 0.2 s.
"""

from __future__ import annotations

import secrets
import socket
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import DistStoreError

from holmes_runtime.config.islands.membership_messages import Arrive, Begin, Conclude, Leave, Look
from holmes_runtime.config.islands.rendezvous_messages import MEETING, Answer, Ask
from holmes_runtime.config.strict_json import parse, to_json

LIMIT_S = 300.0  # the default of torch's own stores
_KEPT: list[RendezvousStore] = []  # a PrefixStore or group keeps only the C++ part alive
TOKEN_BYTES = 8
TRIES = 5  # the controller may be reconnecting to this host


def open_meeting(environ: Mapping[str, str], limit_s: float = LIMIT_S) -> RendezvousStore:
    """Return the rendezvous of this process's island, with a limit on each wait.

    Raises:
        RuntimeError: its address is not known.
    """
    address, _, port = environ.get(MEETING, "").rpartition(":")
    if not port:
        raise RuntimeError(f"{MEETING} must be ADDRESS:PORT of the islands' rendezvous at this node's agent")
    return RendezvousStore(address, int(port), limit_s)


class _Connection:
    """A connection to the rendezvous, with one question at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb")

    def ask(self, question: bytes, limit_s: float) -> tuple[str, ...]:
        """Return the values of the answer. Raises TimeoutError, or OSError if the connection ends."""
        self._socket.settimeout(limit_s)
        self._socket.sendall(question)
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the agent closed the connection")
        return parse(Answer, line.decode()).values

    def close(self) -> None:
        """Close the connection. An answer in transit is lost."""
        self._lines.close()
        self._socket.close()


class RendezvousStore(dist.Store):  # type: ignore[name-defined, misc]
    """The store at `address`. Values are bytes. Each thread that asks uses its own connection."""

    def __init__(self, address: str, port: int, limit_s: float = LIMIT_S) -> None:
        super().__init__()
        _KEPT.append(self)
        self._address, self._limit_s = (address, port), limit_s
        self._idle: list[_Connection] = []

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._limit_s)

    def set(self, key: str, value: str | bytes) -> None:
        self.multi_set([key], [value])

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Put each value at its key, all at once."""
        self._ask(Ask("set", tuple(keys), tuple(map(_text, values))))

    def get(self, key: str) -> bytes:
        """Return the value as soon as it is set. Raises DistStoreError after the time limit."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values as soon as all are set, in one round trip. Raises DistStoreError after the time limit."""
        return [b64decode(value) for value in self._ask(Ask("get", tuple(keys)))]

    def wait_for(self, key: str, limit_s: float) -> bytes:
        """Return the value as soon as it is set. Raises DistStoreError after `limit_s`."""
        return b64decode(self._ask(Ask("get", (key,)), limit_s)[0])

    def tell(self, message: Begin | Arrive | Conclude | Leave | Look) -> str:
        """Send a message of this island to the controller; return the answer, empty if there is none."""
        values = self._ask(Ask("membership", values=(_text(to_json(message, with_kind=True)),)))
        return "".join(b64decode(each).decode() for each in values)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return as soon as all keys are set. Raises DistStoreError after the time limit."""
        self._ask(Ask("get", tuple(keys)), timeout.total_seconds() if timeout is not None else None)

    def check(self, keys: Sequence[str]) -> bool:
        return self._ask(Ask("check", tuple(keys))) == ("1",)

    def add(self, key: str, amount: int) -> int:
        """Add to the number at `key` and return the sum. The token makes a repetition after a lost answer harmless."""
        return int(self._ask(Ask("add", (key,), amount=amount, token=secrets.token_hex(TOKEN_BYTES)))[0])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set `desired` if the value is `expected`, or absent with `expected` empty; return the resulting value."""
        return b64decode(self._ask(Ask("compare_set", (key,), (_text(expected), _text(desired))))[0])

    def delete_key(self, key: str) -> bool:
        """Delete the key; return True if it was set."""
        return self._ask(Ask("delete", (key,))) == ("1",)

    deleteKey = delete_key  # the name that PrefixStore uses in torch 2.13

    def has_extended_api(self) -> bool:
        return True

    def _ask(self, ask: Ask, limit_s: float | None = None) -> tuple[str, ...]:
        """Return the values of the answer. Reconnect and ask again when a connection breaks."""
        question = to_json(ask).encode() + b"\n"
        for tries_left in range(TRIES - 1, -1, -1):
            connection = None
            try:
                connection = self._connection()
                values = connection.ask(question, self._limit_s if limit_s is None else limit_s)
            except OSError as error:
                if connection is not None:
                    connection.close()
                if connection is not None and isinstance(error, TimeoutError):
                    raise DistStoreError(f"rendezvous of islands: no answer to {ask.operation} of {ask.keys}") from None
                if tries_left == 0:
                    raise DistStoreError(f"the rendezvous of islands cannot be reached: {error}") from None
            else:
                self._idle.append(connection)
                return values
        raise AssertionError

    def _connection(self) -> _Connection:
        """Return an idle connection, or a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            return _Connection(self._address)


def _text(value: str | bytes) -> str:
    return b64encode(value.encode() if isinstance(value, str) else bytes(value)).decode()
