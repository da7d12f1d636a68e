"""Remove files that earlier runs left on a host because all their processes were killed at once.

In /dev/shm that is the newest checkpoint (`checkpoint_files/memory_files.py`), up to half of a host's memory. An agent
binds its run's name as a socket, and the kernel frees the name however the agent ends. An old folder with a free name
therefore has no owner. On disk, it is the files of an agent that never started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from holmes_runtime.config.node_config import AGENT_LOCK_FILE, MEMORY_FOLDERS

LEFT_AFTER_S = 3600.0  # without a change: between two attempts of a run, no agent runs for seconds to minutes


def hold(folder: Path) -> socket.socket | None:
    """Keep agents of other runs from removing `folder` while this process lives; None if another process holds it."""
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0holmes-memory/{folder.name}"[:107])  # the longest name that a socket has
    except OSError:
        held.close()
        return None
    return held


def remove_unstarted(now_s: float, runs: Path) -> None:
    """Remove node folders below `runs` that were sent at least LEFT_AFTER_S ago and in which no agent began."""
    for folder in runs.glob("*/*"):
        with contextlib.suppress(OSError):
            if now_s - folder.lstat().st_mtime > LEFT_AFTER_S and not (folder / AGENT_LOCK_FILE).exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.parent.rmdir()


def remove_memory(now_s: float, within: Path = MEMORY_FOLDERS) -> None:
    """Remove this user's folders that are not held and were not written to for LEFT_AFTER_S. `now_s` is Unix time."""
    for folder in within.glob("holmes-*"):
        with contextlib.suppress(OSError):
            if now_s - max(_written_s(folder)) > LEFT_AFTER_S and (held := hold(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                held.close()


def _written_s(folder: Path) -> Iterator[float]:
    """Yield when it and its ranks' parts last changed. Raises OSError unless it is a folder of this user."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(folder)
    yield found.st_mtime
    yield from (part.lstat().st_mtime for part in folder.iterdir())
