"""Messages by which islands take part in outer syncs, and the controller's answers. Free of torch.

An answer that may take long stands at a key of the rendezvous, for which all ranks of an island wait.
"""

from __future__ import annotations

from typing import NamedTuple

from holmes_runtime.config.islands.roster import Arrival, Patience, Roster

LEFT, LOST, SILENT = "left", "lost", "silent"
"""Reasons why no island waits for another: it said so itself; its attempt has ended; one of its hosts is not heard."""
DONE = "done"
"""The verdict on an outer sync that took place; any other is the reason why it did not."""


CONTROLLER = "controller/"
"""The prefix of keys that only the controller sets."""


def decision_key(island: int, start: int, meeting: int) -> str:
    """Return the key of the `Decision` on an island's `meeting`th arrival since its `start`th start."""
    return f"{CONTROLLER}decision/{island}/{start}/{meeting}"


def verdict_key(round_id: int) -> str:
    """Return the key of the verdict on the outer sync of that round."""
    return f"{CONTROLLER}verdict/{round_id}"


def turn_keys(round_id: int, island: int) -> tuple[str, str]:
    """Return the keys of the turn of an island's ranks, and of the number of ranks that have all of the state."""
    return f"turn/{round_id}/{island}", f"told/{round_id}/{island}"


class Begin(NamedTuple):
    """An island starts in state `lineage`, next due at outer sync `exchange`. Answer: `IslandStart`."""

    exchange: int
    lineage: str


class IslandStart(NamedTuple):
    """The start of an island: its number, and True if others have gone on without it."""

    start: int
    is_behind: bool


class Arrive(NamedTuple):
    """An island arrives, for the `meeting`th time since its start. Its `Decision` will stand at `decision_key`."""

    arrival: Arrival
    meeting: int
    patience: Patience


class Decision(NamedTuple):
    """The roster that has this island, or, with no roster, the trouble for which it waits no longer."""

    roster: Roster | None
    trouble: str = ""


class Conclude(NamedTuple):
    """A rank is done with the outer sync of a round, or it failed there for its `trouble`."""

    round_id: int
    rank: int
    trouble: str


class Leave(NamedTuple):
    """The others stop waiting for this island; it does not come back if it `has_ended`."""

    has_ended: bool


class Look(NamedTuple):
    """Asks for the `Standing`."""


class Standing(NamedTuple):
    """The number of rosters decided so far, the islands that wait for the next, and the state of each island.

    The state is the number of its start, or LEFT, LOST or SILENT; empty before its first start.
    """

    num_rosters: int
    waiting: tuple[Arrival, ...]
    states: tuple[str, ...]

    def loss(self, awaited: Arrival) -> str | None:
        """Return the loss of an awaited island; None if it lives."""
        state = self.states[awaited.island]
        if state == SILENT:
            return f"island {awaited.island} has a host that is not heard"
        return None if state in (str(awaited.start), LEFT) else f"island {awaited.island} is lost"


MEMBERSHIP = (Begin, Arrive, Conclude, Leave, Look)
