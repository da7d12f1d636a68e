"""The rendezvous of the ranks of all islands: their membership, and a key-value store of small values.

The controller holds it, so that it outlives every island. Requests come from the agents over the existing connections,
and answers return the same way; no other process reaches it. A rank's request is checked before anything is stored. An
invalid one is refused, and the other ranks continue.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock

from holmes_runtime.config.checks import SHOWN_CHARACTERS, shown
from holmes_runtime.config.islands.membership_messages import (
    CONTROLLER,
    LOST,
    MEMBERSHIP,
    Arrive,
    Begin,
    Conclude,
    Leave,
)
from holmes_runtime.config.islands.rendezvous_messages import Answer, Ask, FromMeeting, ToMeeting
from holmes_runtime.config.strict_json import parse, parse_one_of, to_json
from launcher.islands.membership import Membership

TOKENS_KEPT = 100_000
MAX_KEYS = 4096  # per request
MAX_KEY_CHARACTERS = 1024
MAX_TOKEN_CHARACTERS = 64
MAX_SUM = 1 << 63
MAX_WAITING = 512  # requests of one node; each of its ranks has a few connections
MAX_ANSWER_CHARACTERS = 1 << 24
MAX_HELD_CHARACTERS = 1 << 28  # of all keys and values: decisions stay, some kilobytes an exchange
_NUM_KEYS_AND_VALUES: Mapping[str, tuple[int, int]] = {
    "add": (1, 0),
    "compare_set": (1, 2),
    "delete": (1, 0),
    "membership": (0, 1),
}
"""Numbers of keys and values of the operations with a fixed number of each."""
_KEEPING = ("set", "add", "compare_set", "membership")

Reply = Callable[[FromMeeting], None]
"""Sends a line to a node's agent; the same object for the same node of the same attempt."""
_Asked = tuple[Reply, FromMeeting]


@dataclass(frozen=True)
class _Waiting:
    reply: Reply
    connection: int
    keys: tuple[str, ...]


class RendezvousServer:
    """Takes requests from the threads of all islands; any of these threads may send an answer."""

    def __init__(self, num_islands: int, quorum: int) -> None:
        self._membership = Membership(num_islands, quorum, lambda key, text: self._put(key, _text(text)), self._delete)
        self._values: dict[str, str] = {}  # in base64
        self._held_characters = 0
        self._added: dict[str, str] = {}  # by token, the latest sums: a rank asks again after a lost connection
        self._waiting: list[_Waiting] = []
        self._lock = Lock()

    def take(self, island: int, reply: Reply, message: ToMeeting) -> str | None:
        """Answer a request of a rank of that island, now or once another rank has set the keys it waits for.

        Return the reason if it is refused; its connection is then ended, and nothing has changed.
        """
        refusal = None
        with self._lock:
            if not message.line:
                self._forget(reply, message.connection)
                return None
            try:
                ask = parse(Ask, message.line, 4 * MAX_KEYS)
                _check(ask)
                if self._held_characters + len(message.line) > MAX_HELD_CHARACTERS and ask.operation in _KEEPING:
                    raise ValueError(f"{ask.operation} where {self._held_characters} characters are held already")
                answers = self._answers(island, reply, message.connection, ask)
            except ValueError as error:
                refusal = str(error)[:SHOWN_CHARACTERS]
                answers = [(reply, FromMeeting(message.connection, ""))]
        for send, answer in answers:
            send(answer)
        return refusal

    def has_begun(self, island: int) -> bool:
        """Return True if the island has announced a start since its last attempt ended."""
        with self._lock:
            return self._membership.standing.states[island] not in ("", LOST)

    def lose(self, island: int) -> None:
        """Take the end of an island's attempt: its outer sync does not take place."""
        self._tell(lambda: self._membership.lose(island))

    def hear(self, island: int, is_heard: bool) -> None:
        """Mark an island as silent or heard. Others do not wait for a silent one. Call this regularly."""
        self._tell(lambda: self._membership.hear(island, is_heard))

    def look(self) -> None:
        """Decide on the next roster if it is time. Call this regularly."""
        self._tell(self._membership.look)

    def _tell(self, act: Callable[[], None]) -> None:
        with self._lock:
            act()
            answers = self._answers_to_waiting()
        for send, answer in answers:
            send(answer)

    def _forget(self, reply: Reply, connection: int) -> None:
        self._waiting = [each for each in self._waiting if (each.reply, each.connection) != (reply, connection)]

    def _answers(self, island: int, reply: Reply, connection: int, ask: Ask) -> list[_Asked]:
        """Return all answers that are ready. Raises ValueError for an invalid request."""
        if ask.operation == "get":
            self._forget(reply, connection)
            if sum(each.reply == reply for each in self._waiting) >= MAX_WAITING:
                raise ValueError(f"more than {MAX_WAITING} questions of one node wait for an answer")
            self._waiting.append(_Waiting(reply, connection, ask.keys))
            return self._answers_to_waiting()
        values = self._member(island, ask.values[0]) if ask.operation == "membership" else self._done(ask)
        answers = [(reply, _line(connection, values))]
        return answers + (self._answers_to_waiting() if ask.operation in _KEEPING else [])

    def _answers_to_waiting(self) -> list[_Asked]:
        ready = [each for each in self._waiting if all(key in self._values for key in each.keys)]
        if ready:
            self._waiting = [each for each in self._waiting if each not in ready]
        return [(each.reply, self._answer(each)) for each in ready]

    def _answer(self, asked: _Waiting) -> FromMeeting:
        """Return the values, or the end of the connection if they exceed the size of an answer."""
        if sum(len(self._values[key]) for key in asked.keys) > MAX_ANSWER_CHARACTERS:
            return FromMeeting(asked.connection, "")
        return _line(asked.connection, [self._values[key] for key in asked.keys])

    def _member(self, island: int, packed: str) -> list[str]:
        """Pass a message of an island's rank on, and return the values of the answer. Raises ValueError if invalid."""
        message = parse_one_of(MEMBERSHIP, b64decode(packed).decode())
        if isinstance(message, Begin):
            return [_text(to_json(self._membership.begin(island, message)))]
        if isinstance(message, Arrive):
            self._membership.arrive(island, message)
        elif isinstance(message, Conclude):
            self._membership.conclude(island, message)
        elif isinstance(message, Leave):
            self._membership.leave(island, message)
        else:
            return [_text(to_json(self._membership.standing))]
        return []

    def _put(self, key: str, value: str) -> None:
        self._delete(key)
        self._held_characters += len(key) + len(value)
        self._values[key] = value

    def _delete(self, key: str) -> bool:
        """Delete the key; return False if it was absent."""
        if key not in self._values:
            return False
        self._held_characters -= len(key) + len(self._values.pop(key))
        return True

    def _done(self, ask: Ask) -> list[str]:
        """Carry out a request and return the values of its answer. Raises ValueError for an invalid one."""
        values = self._values
        if ask.operation == "set":
            for key, value in zip(ask.keys, ask.values, strict=True):
                self._put(key, value)
            return []
        if ask.operation == "check":
            return [str(int(all(key in values for key in ask.keys)))]
        key = ask.keys[0]
        if ask.operation == "add":
            return [self._sum(key, ask)]
        if ask.operation == "delete":
            return [str(int(self._delete(key)))]
        expected, desired = ask.values
        if values.get(key, "") == expected:
            self._put(key, desired)
        return [values.get(key, expected)]

    def _sum(self, key: str, ask: Ask) -> str:
        """Add to the number at the key, once per token. Raises ValueError if no such number can be there."""
        if ask.token in self._added:
            return self._added[ask.token]
        number = int(b64decode(self._values[key])) + ask.amount if key in self._values else ask.amount
        if abs(number) >= MAX_SUM:
            raise ValueError(f"the sum at {key[:SHOWN_CHARACTERS]!r} has more than 63 bits")
        total = str(number)
        self._put(key, _text(total))
        if ask.token:
            self._added[ask.token] = total
            if len(self._added) > TOKENS_KEPT:
                del self._added[next(iter(self._added))]
        return total


def _check(ask: Ask) -> None:
    """Raise ValueError for a request that the rendezvous does not answer."""
    sizes = len(ask.keys), len(ask.values)
    fixed = _NUM_KEYS_AND_VALUES.get(ask.operation, (sizes[0], sizes[0] if ask.operation == "set" else 0))
    if sizes != fixed or not any(sizes) or sizes[0] > MAX_KEYS:
        raise ValueError(f"{ask.operation} of {len(ask.keys)} keys and {len(ask.values)} values")
    if (longest := max(map(len, ask.keys), default=0)) > MAX_KEY_CHARACTERS or len(ask.token) > MAX_TOKEN_CHARACTERS:
        raise ValueError(f"{ask.operation} of a key of {longest} characters, with a token of {len(ask.token)}")
    if ask.operation not in ("get", "check") and any(key.startswith(CONTROLLER) for key in ask.keys):
        raise ValueError(f"{ask.operation} of {shown(ask.keys)}, which the controller alone sets")
    for value in ask.values:
        try:
            b64decode(value, validate=True)
        except ValueError:
            raise ValueError(f"{ask.operation} of {shown(value)}, which is not base64") from None


def _text(value: str) -> str:
    return b64encode(value.encode()).decode()


def _line(connection: int, values: list[str]) -> FromMeeting:
    return FromMeeting(connection, to_json(Answer(tuple(values))))
