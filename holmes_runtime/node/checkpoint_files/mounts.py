"""File systems by their mount points. Free of torch."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mounts")


class Mount(NamedTuple):
    """A mounted file system: its mount point and its type, both empty if the system does not say."""

    point: str
    kind: str


def mount_of(path: Path) -> Mount:
    """Return the file system that holds `path`."""
    best = Mount("", "")
    with contextlib.suppress(OSError):
        for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
            _, point, kind, *_ = line.split(" ")
            if len(point) >= len(best.point) and (point == "/" or f"{path.resolve()}/".startswith(f"{point}/")):
                best = Mount(point, kind)
    return best
