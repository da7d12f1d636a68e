"""Requests of islands' ranks to their rendezvous, its answers, and the agents' messages that carry them. Free of torch.

The rendezvous is a dictionary of small values held by the controller, so it outlives every island. A rank makes one
request at a time on a connection. An answer may take as long as another island takes to arrive.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

MEETING = "HOLMES_MEETING"
"""The variable with the address of a node's gate for its ranks: ADDRESS:PORT on the loopback interface."""
EVERY_CONNECTION = 0
MAX_LINE_BYTES = 1 << 22  # the longest lines are layouts of ranks, a few hundred kilobytes


class Ask(NamedTuple):
    """A request. `values` are in base64.

    "set" sets each key to its value. "get" waits until all keys exist and returns their values. "check" returns "1" if
    all keys exist. "add" adds `amount` to the number at the key (0 if missing), once per `token`, and returns the sum.
    "compare_set" sets the key to the second value if it has the first, or is missing and the first is empty; it returns
    the result. "delete" removes the key; "1" if it existed. "membership" carries a message of membership_messages.py.
    """

    operation: Literal["set", "get", "check", "add", "compare_set", "delete", "membership"]
    keys: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    amount: int = 0
    token: str = ""


class Answer(NamedTuple):
    """The answer. `values` are in base64, except for "add" and "check", where they are plain."""

    values: tuple[str, ...]


class ToMeeting(NamedTuple):
    """A line for the islands' rendezvous from a `connection` to this node's gate. Empty: the connection ended."""

    connection: int
    line: str


class FromMeeting(NamedTuple):
    """A line from the islands' rendezvous to one of this gate's connections or EVERY_CONNECTION. Empty: close it."""

    connection: int
    line: str
