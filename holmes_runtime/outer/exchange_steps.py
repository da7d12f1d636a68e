"""After how many steps an island comes to exchanges."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from holmes_runtime.checkpoint.description import OuterCounters
from holmes_runtime.outer.decision import Coming


class Pace(NamedTuple):
    """How fast steps are taken: `steps` so far, from `first_steps` on at `began_s` of the monotonic clock."""

    first_steps: int
    began_s: float
    steps: int

    def without(self, steps: int) -> Pace:
        """After so many that were left out."""
        return Pace(self.first_steps + steps, self.began_s, self.steps + steps)

    def step_s(self) -> float:
        """Seconds a step, at least: of the one under way, where none is done yet."""
        return (time.monotonic() - self.began_s) / max(1, self.steps - self.first_steps)


class TakenByOthers(NamedTuple):
    """Steps that those who were joined have taken since they came to the exchange."""

    steps: int


def due_after(exchange: int, inner_steps: int, fragments: int) -> int:
    """The steps after which an exchange begins: that of a round's last fragment at its end."""
    round_number, fragment = divmod(exchange, fragments)
    return round_number * inner_steps + (fragment + 1) * inner_steps // fragments


def interval_before(exchange: int, inner_steps: int, fragments: int) -> int:
    """The steps from the exchange before to this one."""
    return due_after(exchange, inner_steps, fragments) - (
        due_after(exchange - 1, inner_steps, fragments) if exchange else 0
    )


class Rounds(NamedTuple):
    """The exchanges of a run of `steps`, which are whole rounds."""

    steps: int
    inner_steps: int
    fragments: int

    @property
    def last(self) -> int:
        """The exchange at the end of the run."""
        return self.steps // self.inner_steps * self.fragments - 1

    def planned(self, exchange: int) -> int:
        """Return the steps after which that exchange begins."""
        return due_after(exchange, self.inner_steps, self.fragments)

    def interval(self, exchange: int) -> int:
        """Return the steps from the exchange before to that one."""
        return interval_before(exchange, self.inner_steps, self.fragments)


def next_due(counters: OuterCounters, inner_steps: int) -> int:
    """When the next exchange is due: as planned, or as long after the one before as planned if that one was late."""
    number, _, synced_steps, *_ = counters
    fragments = len(synced_steps)
    if not number:
        return due_after(0, inner_steps, fragments)
    late = synced_steps[(number - 1) % fragments] - due_after(number - 1, inner_steps, fragments)
    return due_after(number, inner_steps, fragments) + max(late, 0)


def taken_since(until_s: float, since_s: float, interval_s: float, interval_steps: int, delay_steps: int) -> int:
    """Steps that islands take at `interval_steps` an interval: `until_s` before an exchange has taken place, and after.

    Until it has, they wait after `delay_steps`; for the next exchange after all the steps of an interval.
    """
    if interval_s <= 0.0:  # nothing is known of how long they take
        return min(interval_steps, delay_steps)
    rate = interval_steps / interval_s
    return min(interval_steps, int(min(delay_steps, until_s * rate) + since_s * rate))


def is_awaited(waiting: Sequence[Coming], left_s: float, grace_s: float, is_last: bool) -> bool:
    """Whether an island that would come in `left_s` should come at once, as others wait.

    They wait for its state if they are behind and it is not on its way to them; the exchange that `is_last` stays at
    the end of the run all the same. Otherwise what it has learned might be left out.
    """
    if any(each.calls for each in waiting) and not is_last:
        return True
    return any(not each.is_behind for each in waiting) and left_s > grace_s / 2
