"""What is left of the time that all parts of some work have together."""

from __future__ import annotations

import time


class TimeLeft:
    """Seconds until a limit, which begins now, is over."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = time.monotonic() + limit_s

    @property
    def seconds(self) -> float:
        """What is left; never below 0."""
        return max(0.0, self._end_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return time.monotonic() >= self._end_s

    def less(self, seconds: float) -> TimeLeft:
        """What is left if so many seconds of it are kept for something else."""
        return TimeLeft(self.seconds - seconds)
