"""The steps after which an island arrives at outer syncs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from holmes_runtime.config.islands.roster import Arrival
from holmes_runtime.node.checkpoint_files.description import OuterCounters


class StepPace(NamedTuple):
    """The speed of inner steps: from `first_steps` at `began_s` of the monotonic clock to `steps` now."""

    first_steps: int
    began_s: float
    steps: int

    def without(self, steps: int) -> StepPace:
        """Return the pace after `steps` steps were skipped."""
        return StepPace(self.first_steps + steps, self.began_s, self.steps + steps)

    def step_s(self) -> float:
        """Return the seconds of a step; during the first, its seconds so far."""
        return (time.monotonic() - self.began_s) / max(1, self.steps - self.first_steps)


class TakenByOthers(NamedTuple):
    """Steps that the other islands took between an outer sync and this island's join."""

    steps: int


def due_after(exchange: int, inner_steps: int, fragments: int) -> int:
    """Return the steps after which an outer sync is due. The last of a round is due at the end of the round."""
    round_number, fragment = divmod(exchange, fragments)
    return round_number * inner_steps + (fragment + 1) * inner_steps // fragments


class Rounds(NamedTuple):
    """The outer syncs of a run of `steps`, which are whole rounds."""

    steps: int
    inner_steps: int
    fragments: int

    @property
    def last(self) -> int:
        """The outer sync at the end of the run."""
        return self.steps // self.inner_steps * self.fragments - 1

    def planned(self, exchange: int) -> int:
        return due_after(exchange, self.inner_steps, self.fragments)

    def first_open(self, steps: int, delay_steps: int) -> int:
        """Return the first outer sync that may not have been applied after `steps` steps."""
        return next(each for each in count() if self.planned(each) + delay_steps >= steps)

    def interval(self, exchange: int) -> int:
        """Return the steps from the previous outer sync to that one."""
        return self.planned(exchange) - (self.planned(exchange - 1) if exchange else 0)


def next_due(counters: OuterCounters, inner_steps: int) -> int:
    """Return the steps after which the next outer sync is due: as planned, or as late as the one before it was."""
    number, _, synced_steps, *_ = counters
    fragments = len(synced_steps)
    if not number:
        return due_after(0, inner_steps, fragments)
    late = synced_steps[(number - 1) % fragments] - due_after(number - 1, inner_steps, fragments)
    return due_after(number, inner_steps, fragments) + max(late, 0)


def taken_since(until_s: float, since_s: float, interval_s: float, interval_steps: int, delay_steps: int) -> int:
    """Return the steps that islands take from `until_s` before an outer sync took place to `since_s` after it.

    They take `interval_steps` in `interval_s`. They wait for its outcome after `delay_steps`, and for the next outer
    sync at the end of the interval.
    """
    if interval_s <= 0.0:  # unknown
        return min(interval_steps, delay_steps)
    rate = interval_steps / interval_s
    return min(interval_steps, int(min(delay_steps, until_s * rate) + since_s * rate))


def is_awaited(waiting: Sequence[Arrival], left_s: float, grace_s: float, is_last: bool) -> bool:
    """Return True if an island that is due in `left_s` should arrive at once because others wait.

    Islands that are behind wait for its state, unless they are receiving it. The outer sync that `is_last` is not
    moved for them. Other islands wait at most for the grace time, and leave out an island that arrives much later.
    """
    if any(each.calls for each in waiting) and not is_last:
        return True
    return any(not each.is_behind for each in waiting) and left_s > grace_s / 2
