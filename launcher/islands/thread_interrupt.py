"""Ctrl-C for a launch that runs in a thread of its own, where Python raises none."""

from __future__ import annotations

from threading import Semaphore


class ThreadInterrupt:
    """Raises one KeyboardInterrupt per `tell` in the thread of the launch: the second one means "at once"."""

    def __init__(self) -> None:
        self._times = Semaphore(0)

    def tell(self) -> None:
        """Ask the launch to end, from any thread."""
        self._times.release()

    def heed(self) -> None:
        """Raise KeyboardInterrupt if `tell` was called since the last time."""
        if self._times.acquire(blocking=False):
            raise KeyboardInterrupt

    def pause(self, limit_s: float) -> None:
        """Wait `limit_s`. Raises KeyboardInterrupt as soon as `tell` is called."""
        if self._times.acquire(timeout=limit_s):
            raise KeyboardInterrupt
