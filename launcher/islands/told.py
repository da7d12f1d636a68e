"""Ctrl-C for a launch that runs in a thread of its own, where Python raises none."""

from __future__ import annotations

from threading import Semaphore


class Told:
    """Each `tell` raises one KeyboardInterrupt in the thread that heeds it: the first, and a second for "at once"."""

    def __init__(self) -> None:
        self._times = Semaphore(0)

    def tell(self) -> None:
        """From any thread: end it."""
        self._times.release()

    def heed(self) -> None:
        """Raises KeyboardInterrupt if it was told since the last time."""
        if self._times.acquire(blocking=False):
            raise KeyboardInterrupt

    def pause(self, limit_s: float) -> None:
        """Wait so long. Raises KeyboardInterrupt as soon as it is told."""
        if self._times.acquire(timeout=limit_s):
            raise KeyboardInterrupt
