"""Waiting for what another process does: until it holds, however busy the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 300.0
LOOK_EVERY_S = 0.05


def eventually(holds: Callable[[], bool], within_s: float = PATIENCE_S) -> bool:
    """Whether `holds` becomes true in time. A shorter time than the usual one is part of what a test says."""
    deadline_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(LOOK_EVERY_S)
    return True
