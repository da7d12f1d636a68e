"""What ranks of islands ask of the meeting, its answers, and how agents carry both. Free of torch.

The meeting is a dictionary of small values that the controller holds, so that it outlives every island. A rank asks one
thing at a time on a connection; an answer may take as long as another island takes to come.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

MEETING = "HOLMES_MEETING"
"""The variable by which ranks find their node's gate: ADDRESS:PORT on the loopback."""
PLACE = "islands"
"""Under which islands keep all that they say at the meeting."""
EVERY_CONNECTION = 0
MOST_LINE_BYTES = 1 << 22  # what ranks say of their layout is the longest, some hundred kilobytes


LEFT, LOST, SILENT = "left", "lost", "silent"


def here_key(island: int) -> str:
    """Where the number of an island's start is from its beginning on, and while nobody waits for it, why.

    LEFT, as it said itself; LOST, as the attempt has ended; SILENT, as one of its hosts is not heard at the moment.
    """
    return f"here/{island}"


def starts_key(island: int) -> str:
    """Where it is counted how often an island has begun: the number of its last start."""
    return f"starts/{island}"


class Ask(NamedTuple):
    """`values` are in base64.

    "set": each key to its value. "get": the values of all keys, as soon as all are there. "check": "1" if all are
    there. "add": `amount` to the number at the key, 0 if there is none, once for a `token`; the sum. "compare_set": the
    key to the second value if it has the first, or has none and the first is empty; what it has then. "delete": the
    key; "1" if it was there.
    """

    operation: Literal["set", "get", "check", "add", "compare_set", "delete"]
    keys: tuple[str, ...]
    values: tuple[str, ...] = ()
    amount: int = 0
    token: str = ""


class Answer(NamedTuple):
    """`values` are in base64, those of "add" and "check" plain."""

    values: tuple[str, ...]


class ToMeeting(NamedTuple):
    """A line for the meeting of islands, by that connection to this node's gate; an empty one: the connection ended."""

    connection: int
    line: str


class FromMeeting(NamedTuple):
    """A line of the meeting of islands for that connection to this node's gate, or EVERY_CONNECTION; an empty one: end
    the connection."""

    connection: int
    line: str
