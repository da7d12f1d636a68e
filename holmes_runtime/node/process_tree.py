"""End everything that a process started, by ids from the kernel. Linux; standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """A process as in /proc/PID/stat. In `state` "D" it waits for a device and cannot be ended; in "Z" it has ended."""

    pid: int
    parent: int
    name: str
    state: str
    start_ticks: int


def read_process(pid: int) -> Process | None:
    """Return the process with that id, None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    before, _, after = text.rpartition(")")
    fields = after.split()
    return Process(pid, int(fields[1]), before.partition("(")[2], fields[0], int(fields[19]))


def adopt_orphans() -> None:
    """Make every descendant whose parent dies a child of this process, so `descendants` loses none."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends. Do nothing on other systems.

    Raises OSError if the kernel refuses, and SystemExit if the parent has already ended.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which started this one, has ended")


def descendants(of: int | None = None) -> list[Process]:
    """Return all running descendants of process `of` (by default this one), children before grandchildren."""
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
    """Send SIGTERM to all descendants, and SIGKILL to those still running after `grace_s`. Return those that remain.

    The process must adopt orphans: it then has children as long as it has descendants, so waiting need not read /proc.
    """
    if _all_have_ended():
        return []
    send(descendants(), signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while not (ended := _all_have_ended()) and time.monotonic() < deadline:
        time.sleep(0.02)
    while not ended:
        send(descendants(), signal.SIGKILL)
        time.sleep(0.02)
        ended = _all_have_ended()
        if time.monotonic() > deadline + max(grace_s, 1.0):
            return descendants()
    return []


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to all of the processes that still run and belong to this user."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # wireguard-go of root ends with its interface
            os.kill(process.pid, number)


def _all_have_ended() -> bool:
    """Return True if no child is left. Collects the exit statuses of those that ended."""
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
    """Return True if the process blocks, ignores or catches the signal instead of being ended by it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:")) and int(line.split()[1], 16) >> (number - 1) & 1:
                return True
    return False


def local_rank_of(pid: int) -> int | None:
    """Return LOCAL_RANK from the environment of the process, None if it has none."""
    with contextlib.suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"LOCAL_RANK="):
                return int(variable.partition(b"=")[2])
    return None
