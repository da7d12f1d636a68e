"""Work in a child process while this process continues."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NICENESS = 5  # of a child, so that many of them do not slow this process down
FORKS_SAFELY = sys.platform == "linux"


class BackgroundCall(Generic[T]):
    """`work()` in a child that shares this process's memory as it is now. Leaving the context ends it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._read: Connection | None = None

    def __enter__(self) -> BackgroundCall[T]:
        if FORKS_SAFELY:
            context = multiprocessing.get_context("fork")
            self._read, write = context.Pipe(duplex=False)
            self._child = context.Process(target=_send, args=(write, self._work), daemon=True)
            with _interrupts_put_off():
                self._child.start()
            write.close()
        return self

    def result_within(self, seconds: float) -> T | None:
        """Return the result of `work`, or None if the child failed or has not sent it within `seconds`.

        Without a child, since only Linux forks safely, the work is done here.
        """
        if self._read is None:
            return self._work()
        if self._read.poll(seconds):
            with contextlib.suppress(EOFError):
                received: T = self._read.recv()
                return received
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._read is not None:
            self._read.close()
            self._child.kill()
            self._child.join()


@contextlib.contextmanager
def _interrupts_put_off() -> Iterator[None]:
    """Delay `INTERRUPTS` until the end, since Python drops an exception raised while it forks."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets interrupts
        return
    came: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: came.append(number)) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for each in came:
        signal.raise_signal(each)


def _send(write: Connection, work: Callable[[], T]) -> None:
    """Do the work in the child, without the parent's exit handlers, which might write its output twice."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_DFL)
    os.nice(NICENESS)
    with contextlib.suppress(Exception):
        write.send(work())
    os._exit(0)
