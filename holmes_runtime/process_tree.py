"""Ending everything a process started, by ids the kernel gives. Linux; standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on a descendant whose parent dies becomes our child, so that none is lost from `descendants`."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends; does nothing on other systems.

    Raises OSError if the kernel refuses and SystemExit if the parent ended meanwhile.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which started this one, has ended")


def descendants() -> list[int]:
    """Process ids of all descendants of this process that still run, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            parent, state = _parent_and_state(entry)
            if state != "Z":
                children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def end_descendants(grace_s: float) -> None:
    """SIGTERM to all descendants, then SIGKILL to those that still run after `grace_s` seconds."""
    _signal_all(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while descendants() and time.monotonic() < deadline:
        _reap()
        time.sleep(0.02)
    while descendants():
        _signal_all(signal.SIGKILL)
        _reap()
        time.sleep(0.02)
        if time.monotonic() > deadline + grace_s:
            break


def _signal_all(number: signal.Signals) -> None:
    for pid in descendants():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _parent_and_state(entry: Path) -> tuple[int, str]:
    try:
        after_name = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return -1, "Z"
    return int(after_name[1]), after_name[0]


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
