"""Ctrl-C in a launch: recorded whenever it comes, raised only where the launch checks for it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import TypeVar

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Result = TypeVar("Result")


class Interrupts:
    """Requests to end a launch. Each is raised once: the first means "save and end", the second "at once".

    Python itself raises KeyboardInterrupt at any instruction. If that happens just after a thread takes a lock, the
    lock is never released, and the code that ends the run waits for it forever.
    """

    def __init__(self) -> None:
        self._noted: SimpleQueue[None] = SimpleQueue()  # a signal handler may `put` while the same thread is in `get`
        self._raises_now = False

    def tell(self) -> None:
        """Note a request to end, from any thread or signal handler."""
        self._noted.put(None)

    def heed(self) -> None:
        """Raise KeyboardInterrupt if a request was noted."""
        with contextlib.suppress(Empty):
            self._noted.get_nowait()
            raise KeyboardInterrupt

    def pause(self, limit_s: float) -> None:
        """Wait `limit_s`. Raises KeyboardInterrupt as soon as a request is noted."""
        with contextlib.suppress(Empty):
            self._noted.get(timeout=limit_s)
            raise KeyboardInterrupt

    def raised_during(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, which a signal interrupts at any instruction: for long work without locks."""
        self.heed()
        self._raises_now = True
        try:
            return work()
        finally:
            self._raises_now = False

    def take_signal(self) -> None:
        """Note a signal to this process."""
        self.tell()
        if self._raises_now:
            self.heed()


@contextlib.contextmanager
def signals_call(take: Callable[[], None]) -> Iterator[None]:
    """Call `take` and do nothing else when a signal asks this process to end. Ignored signals stay ignored."""
    before = {}
    try:
        if threading.current_thread() is threading.main_thread():  # the others get no signals
            for number in SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    before[number] = signal.signal(number, lambda *_: take())
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ctrl_c_ignored() -> contextlib.AbstractContextManager[None]:
    """Ignore requests to end this process."""
    return signals_call(lambda: None)
