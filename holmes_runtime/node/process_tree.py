"""Ending everything a process started, by ids the kernel gives. Linux; standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """A process as /proc/PID/stat shows it; `state` "D" waits for a device and cannot be ended, "Z" has ended."""

    pid: int
    parent: int
    name: str
    state: str
    start_ticks: int


def read_process(pid: int) -> Process | None:
    """The process, None if there is none of that id."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    before, _, after = text.rpartition(")")
    fields = after.split()
    return Process(pid, int(fields[1]), before.partition("(")[2], fields[0], int(fields[19]))


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


def descendants(of: int | None = None) -> list[Process]:
    """All descendants of process `of` (this one if None) that still run, children before grandchildren."""
    children: dict[int, list[Process]] = {}
    for entry in Path("/proc").iterdir():
        process = read_process(int(entry.name)) if entry.name.isdecimal() else None
        if process is not None and process.state != "Z":
            children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [os.getpid() if of is None else of]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += [process.pid for process in below]
    return found


def end_descendants(grace_s: float) -> list[Process]:
    """SIGTERM to all descendants, SIGKILL to those that still run after `grace_s` seconds; those that stay.

    For a process that adopts orphans: it has descendants as long as it has children, so waiting costs no look at /proc.
    """
    if _all_have_ended():
        return []
    _signal_all(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while not (ended := _all_have_ended()) and time.monotonic() < deadline:
        time.sleep(0.02)
    while not ended:
        _signal_all(signal.SIGKILL)
        time.sleep(0.02)
        ended = _all_have_ended()
        if time.monotonic() > deadline + max(grace_s, 1.0):
            return descendants()
    return []


def _signal_all(number: signal.Signals) -> None:
    for process in descendants():
        with contextlib.suppress(ProcessLookupError, PermissionError):  # root's wireguard-go ends with its interface
            os.kill(process.pid, number)


def _all_have_ended() -> bool:
    """Return True if no child is left; takes the exit statuses of those that ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def survives(pid: int, number: signal.Signals) -> bool:
    """Return True if the process blocks, ignores or catches the signal, which would else end it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:")) and int(line.split()[1], 16) >> (number - 1) & 1:
                return True
    return False


def local_rank_of(pid: int) -> int | None:
    """LOCAL_RANK in the environment of the process."""
    with contextlib.suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"LOCAL_RANK="):
                return int(variable.partition(b"=")[2])
    return None
