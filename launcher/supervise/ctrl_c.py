"""Ctrl-C and SIGTERM while a run ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """Ignore both: a second Ctrl-C must not leave ranks behind. Ending takes seconds and is bounded."""
    is_main = threading.current_thread() is threading.main_thread()  # the others get no signals
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM) if is_main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
