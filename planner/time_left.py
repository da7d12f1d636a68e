"""The time left of a limit that several pieces of work share."""

from __future__ import annotations

import time


class TimeLeft:
    """Seconds until a limit, which begins now, is over."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = time.monotonic() + limit_s

    @property
    def seconds(self) -> float:
        """The remaining seconds; never below 0."""
        return max(0.0, self._end_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        """True if no time is left."""
        return time.monotonic() >= self._end_s

    def less(self, seconds: float) -> TimeLeft:
        """Return the time left without `seconds` of it, reserved for something else."""
        return TimeLeft(self.seconds - seconds)
