"""Messages with which islands take part in outer syncs, and the controller's answers. Free of torch.

An answer that may take long is stored at a key of the rendezvous. All ranks of an island wait for that key.
"""

from __future__ import annotations

from typing import NamedTuple

from holmes_runtime.config.islands.roster import Arrival, Patience, Roster

LEFT, LOST, SILENT = "left", "lost", "silent"
"""Reasons not to wait for an island: it left by its own message; its attempt has ended; one of its hosts is silent."""
DONE = "done"
"""The verdict on an outer sync that took place. Any other verdict is the reason why it failed."""


CONTROLLER = "controller/"
"""The prefix of keys that only the controller sets."""


def decision_key(island: int, start: int, meeting: int) -> str:
    """Return the key of the `Decision` on an island's arrival number `meeting` since its start number `start`."""
    return f"{CONTROLLER}decision/{island}/{start}/{meeting}"


def verdict_key(round_id: int) -> str:
    """Return the key of the verdict on the outer sync of that rendezvous round."""
    return f"{CONTROLLER}verdict/{round_id}"


def turn_keys(round_id: int, island: int) -> tuple[str, str]:
    """Return the key for the turn of an island's ranks, and the key for the number of ranks with the full state."""
    return f"turn/{round_id}/{island}", f"told/{round_id}/{island}"


class Begin(NamedTuple):
    """An island starts with state `lineage`, next due at outer sync `exchange`. The answer is an `IslandStart`."""

    exchange: int
    lineage: str


class IslandStart(NamedTuple):
    """The start of an island: its number, and True if others have continued without it."""

    start: int
    is_behind: bool


class Arrive(NamedTuple):
    """An island arrives, for the `meeting`th time since its start. Its `Decision` will be stored at `decision_key`."""

    arrival: Arrival
    meeting: int
    patience: Patience


class Decision(NamedTuple):
    """The roster with this island, or no roster and the `trouble` that ends its wait."""

    roster: Roster | None
    trouble: str = ""


class Conclude(NamedTuple):
    """A rank has finished the outer sync of a round, or failed in it because of `trouble`."""

    round_id: int
    rank: int
    trouble: str


class Leave(NamedTuple):
    """The other islands stop waiting for this one. If it `has_ended`, it will not come back."""

    has_ended: bool


class Look(NamedTuple):
    """A request for the `Standing`."""


class Standing(NamedTuple):
    """The number of rosters decided so far, the islands that wait for the next one, and the state of each island.

    A state is the number of the island's start, or LEFT, LOST or SILENT; it is empty before the first start.
    """

    num_rosters: int
    waiting: tuple[Arrival, ...]
    states: tuple[str, ...]

    def loss(self, awaited: Arrival) -> str | None:
        """Return why an awaited island counts as lost; None if it lives."""
        state = self.states[awaited.island]
        if state == SILENT:
            return f"island {awaited.island} has a silent host"
        return None if state in (str(awaited.start), LEFT) else f"island {awaited.island} is lost"


MEMBERSHIP = (Begin, Arrive, Conclude, Leave, Look)
