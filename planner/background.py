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
PATIENCE_S = 60.0  # for a result: very rarely, a child forked from a process with threads finds a lock held for ever


class BackgroundCall(Generic[T]):
    """`work()` in a child that shares this process's memory as it is now. Leaving the context ends it.

    `result` does the work here if there is no child, since only Linux forks safely, or if the child failed: for lack of
    memory, with an exception, or without an answer for `patience_s`.
    """

    def __init__(self, work: Callable[[], T], patience_s: float = PATIENCE_S) -> None:
        self._work, self._patience_s = work, patience_s
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

    def result(self) -> T:
        """Return the result of `work`."""
        return received[0] if (received := self._receive(self._patience_s)) else self._work()

    def result_within(self, seconds: float) -> T | None:
        """Return the result of `work`, or None if a child has not sent it within `seconds`."""
        if self._read is None:
            return self._work()
        return received[0] if (received := self._receive(seconds)) else None

    def _receive(self, within_s: float) -> tuple[T] | None:
        """Return the child's result in a tuple, or None if it does not arrive in time."""
        if self._read is not None and self._read.poll(within_s):
            with contextlib.suppress(EOFError):
                return (self._read.recv(),)
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
