"""Where the ranks of all islands meet: a dictionary of small values, held by the controller.

It outlives every island. What is asked comes from the agents, over the channels that are there already, and answers go
back the same way; nobody else reaches it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from holmes_runtime.config.meeting_words import (
    LOST,
    PLACE,
    SILENT,
    Answer,
    Ask,
    FromMeeting,
    ToMeeting,
    here_key,
    starts_key,
)
from holmes_runtime.config.strict_json import parse, to_json

TOKENS_KEPT = 100_000

Reply = Callable[[FromMeeting], None]
"""Sends a node's agent a line; the same object for the same node of the same attempt."""
_Asked = tuple[Reply, FromMeeting]


@dataclass(frozen=True)
class _Waiting:
    reply: Reply
    connection: int
    keys: tuple[str, ...]


class Meeting:
    """Takes lines from the threads of all islands; an answer may be sent from that of another."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}  # in base64, as they come
        self._added: dict[str, str] = {}  # by token, the last sums: who has lost its connection asks again
        self._waiting: list[_Waiting] = []
        self._lock = Lock()

    def take(self, reply: Reply, message: ToMeeting) -> None:
        """Answer what a node's rank asks, now or when another has set what it waits for. Who asks amiss is ended."""
        with self._lock:
            if not message.line:
                self._forget(reply, message.connection)
                return
            try:
                answers = self._answers(reply, message.connection, parse(Ask, message.line))
            except (ValueError, IndexError):
                answers = [(reply, FromMeeting(message.connection, ""))]
        for send, answer in answers:
            send(answer)

    def lose(self, island: int) -> None:
        """Tell all that an attempt of that island has ended, however: what it was in does not take place any more."""
        with self._lock:
            self._values[f"{PLACE}/{here_key(island)}"] = _text(LOST)
            answers = self._answers_to_waiting()
        for send, answer in answers:
            send(answer)

    def hear(self, island: int, is_heard: bool) -> None:
        """Tell all that nobody waits for that island while it is not heard; to be called again and again."""
        key = f"{PLACE}/{here_key(island)}"
        with self._lock:
            here = self._values.get(key)
            if is_heard and here == _text(SILENT):
                self._values[key] = self._values[f"{PLACE}/{starts_key(island)}"]
            elif not is_heard and here is not None and b64decode(here).isdigit():
                self._values[key] = _text(SILENT)

    def _forget(self, reply: Reply, connection: int) -> None:
        self._waiting = [each for each in self._waiting if (each.reply, each.connection) != (reply, connection)]

    def _answers(self, reply: Reply, connection: int, ask: Ask) -> list[_Asked]:
        """All answers that can be given now."""
        if ask.operation == "get":
            self._waiting.append(_Waiting(reply, connection, ask.keys))
            return self._answers_to_waiting()
        answers = [(reply, _line(connection, self._done(ask)))]
        return answers + (self._answers_to_waiting() if ask.operation in ("set", "add", "compare_set") else [])

    def _answers_to_waiting(self) -> list[_Asked]:
        ready = [each for each in self._waiting if all(key in self._values for key in each.keys)]
        if ready:
            self._waiting = [each for each in self._waiting if each not in ready]
        return [(each.reply, _line(each.connection, [self._values[key] for key in each.keys])) for each in ready]

    def _done(self, ask: Ask) -> list[str]:
        """Do it; the values of the answer. Raises ValueError or IndexError for what cannot be."""
        values = self._values
        if ask.operation == "set":
            values.update(zip(ask.keys, ask.values, strict=True))
            return []
        if ask.operation == "check":
            return [str(int(all(key in values for key in ask.keys)))]
        key = ask.keys[0]
        if ask.operation == "add":
            if ask.token in self._added:
                return [self._added[ask.token]]
            total = str(int(b64decode(values[key])) + ask.amount if key in values else ask.amount)
            if ask.token:
                self._added[ask.token] = total
                if len(self._added) > TOKENS_KEPT:
                    del self._added[next(iter(self._added))]
            values[key] = _text(total)
            return [total]
        if ask.operation == "delete":
            return [str(int(values.pop(key, None) is not None))]
        expected, desired = ask.values
        if values.get(key, "") == expected:
            values[key] = desired
        return [values.get(key, expected)]


def _text(value: str) -> str:
    return b64encode(value.encode()).decode()


def _line(connection: int, values: list[str]) -> FromMeeting:
    return FromMeeting(connection, to_json(Answer(tuple(values))))
