"""Limits on the memory and the processor time of work that text from outside directs."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from types import FrameType

OWN_PAGES = Path("/proc/self/statm")  # Linux; elsewhere the system holds no process to a limit of addresses

AGAIN_S = 0.1  # between two errors where the block has swallowed the first


@contextmanager
def bounded_work(memory_bytes: int, cpu_s: float) -> Iterator[None]:
    """Let the block take `memory_bytes` more than the process has, and `cpu_s` of processor time. Main thread only.

    The system ends the process at ten times `cpu_s`: a single operation of Python hears of no timer.

    Raises:
        MemoryError: It asks for more memory.
        TimeoutError: It takes longer.
    """
    limits, cpu_limits = resource.getrlimit(resource.RLIMIT_AS), resource.getrlimit(resource.RLIMIT_CPU)
    before = signal.signal(signal.SIGVTALRM, _end)
    try:
        if OWN_PAGES.exists():
            held = int(OWN_PAGES.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
            most = held + memory_bytes
            if limits[0] == resource.RLIM_INFINITY or most < limits[0]:
                resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
        most_s = ceil(time.process_time() + 10 * cpu_s)
        if cpu_limits[0] == resource.RLIM_INFINITY or most_s < cpu_limits[0]:
            resource.setrlimit(resource.RLIMIT_CPU, (most_s, cpu_limits[1]))
        signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s, AGAIN_S)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        resource.setrlimit(resource.RLIMIT_CPU, cpu_limits)


def _end(*_: int | FrameType | None) -> None:
    raise TimeoutError
