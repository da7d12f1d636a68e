"""The process that takes a bed down, started before anything of the bed is made.

It reads on its standard input what the bed makes, one line each, and acts when the bed says `end` or when the pipe
closes because the bed's owner is gone, however it went. It removes what was recorded and nothing else.
    folder PATH | namespace NAME | process PID START_TIME | end
This file runs as a script of its own, so it imports nothing of ours.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

NAMESPACE_FOLDER = Path("/run/netns")  # where `ip netns` keeps the names
PATIENCE_S = 10.0


@dataclass
class Recorded:
    """What a bed has said it made; `processes` holds (pid, start time), for a pid alone may be reused."""

    folders: list[Path] = field(default_factory=list)
    namespaces: list[str] = field(default_factory=list)
    processes: list[tuple[int, int]] = field(default_factory=list)


def read_recorded(lines: Iterable[str]) -> Recorded:
    """Everything recorded, once the bed says `end` or its pipe closes."""
    recorded = Recorded()
    for line in lines:
        kind, _, value = line.rstrip("\n").partition(" ")
        if kind == "end":
            break
        if kind == "folder":
            recorded.folders.append(Path(value))
        elif kind == "namespace":
            recorded.namespaces.append(value)
        elif kind == "process":
            pid, start_time = value.split()
            recorded.processes.append((int(pid), int(start_time)))
    return recorded


def process_start_time(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the command in brackets may hold anything
    return None if state in "ZX" else int(fields[18])  # proc(5): field 22, and `fields` starts at field 4


def pids_in_namespaces(names: Iterable[str]) -> list[int]:
    """All processes that are in one of the named network namespaces, in order of pid."""
    wanted = {identity for name in names if (identity := _identity(NAMESPACE_FOLDER / name)) is not None}
    pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()) if wanted else []
    return [pid for pid in pids if _identity(Path(f"/proc/{pid}/ns/net")) in wanted]


def _identity(path: Path) -> tuple[int, int] | None:
    """The device and inode behind `path`: equal for two paths to one namespace; None if it is gone."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def end_processes(recorded: Recorded) -> list[int]:
    """Kills every process of the bed; returns those still there when patience ends.

    It looks until it has found nothing twice: a process may enter a namespace while the others are being killed.
    """
    deadline = time.monotonic() + PATIENCE_S
    quiet_looks = 0
    alive: set[int] = set()
    while quiet_looks < 2 and time.monotonic() < deadline:
        alive = {pid for pid, start_time in recorded.processes if process_start_time(pid) == start_time}
        alive |= set(pids_in_namespaces(recorded.namespaces))
        for pid in alive:
            _kill(pid)
        quiet_looks = 0 if alive else quiet_looks + 1
        time.sleep(0.02)
    return sorted(alive)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def delete_namespace(name: str) -> str | None:
    """Deletes one namespace and, with it, its interfaces; returns the complaint if that failed."""
    if not (NAMESPACE_FOLDER / name).exists():
        return None
    done = subprocess.run(["ip", "netns", "delete", name], capture_output=True, text=True, check=False)
    return f"namespace {name}: {done.stderr.strip()}" if done.returncode else None


def delete_folder(folder: Path) -> str | None:
    """Deletes one folder with all it holds; returns the complaint if that failed."""
    if not folder.exists():
        return None
    try:
        shutil.rmtree(folder)
    except OSError as error:
        return f"folder {folder}: {error}"
    return None


def take_down(recorded: Recorded) -> list[str]:
    """Removes everything recorded; returns what is left, in words."""
    left: list[str | None] = [f"process {pid}: still running" for pid in end_processes(recorded)]
    left += [delete_namespace(name) for name in recorded.namespaces]
    left += [delete_folder(folder) for folder in recorded.folders]
    return [complaint for complaint in left if complaint is not None]


def main() -> int:
    """Waits for the end of the bed and takes it down; status 1 and one line each for what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    left = take_down(read_recorded(sys.stdin))
    for complaint in left:
        print(complaint, file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
