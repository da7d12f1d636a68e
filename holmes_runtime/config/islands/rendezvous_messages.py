"""Requests of islands' ranks to their rendezvous, its answers, and the agents' messages with both. Free of torch.

The rendezvous is a dictionary of small values held by the controller, so that it outlives every island. A rank makes
one request at a time on a connection; an answer may take as long as another island takes to arrive.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

MEETING = "HOLMES_MEETING"
"""The variable with the address of a node's gate for its ranks: ADDRESS:PORT on the loopback."""
EVERY_CONNECTION = 0
MAX_LINE_BYTES = 1 << 22  # the longest are ranks' layouts, some hundred kilobytes


class Ask(NamedTuple):
    """A request. `values` are in base64.

    "set": each key to its value. "get": the values of all keys, once all exist. "check": "1" if all exist.
    "add": adds `amount` to the number at the key (0 if missing), once per `token`; returns the sum.
    "compare_set": sets the key to the second value if it has the first, or is missing and the first is empty; returns
    its value afterwards. "delete": the key; "1" if it existed. "membership": a message of membership_messages.py.
    """

    operation: Literal["set", "get", "check", "add", "compare_set", "delete", "membership"]
    keys: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    amount: int = 0
    token: str = ""


class Answer(NamedTuple):
    """`values` are in base64, except for "add" and "check", which are plain."""

    values: tuple[str, ...]


class ToMeeting(NamedTuple):
    """A line for the rendezvous of islands from a `connection` to this node's gate; empty: the connection ended."""

    connection: int
    line: str


class FromMeeting(NamedTuple):
    """A line of the rendezvous of islands for that connection to this gate, or EVERY_CONNECTION; empty: end it."""

    connection: int
    line: str
