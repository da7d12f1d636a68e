"""Limits on the memory and processor time of work that untrusted text directs."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from types import FrameType

OWN_PAGES = Path("/proc/self/statm")  # Linux; other systems do not enforce RLIMIT_AS

AGAIN_S = 0.1  # until the error is raised again, in case the block has swallowed it


@contextmanager
def bounded_work(memory_bytes: int, cpu_s: float) -> Iterator[None]:
    """Limit the block to `memory_bytes` more than the process has, and to `cpu_s` of processor time. Main thread only.

    A single operation of Python cannot be interrupted, so the system ends the process at ten times `cpu_s`.

    Raises:
        MemoryError: The block needs more memory.
        TimeoutError: The block needs more time.
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
