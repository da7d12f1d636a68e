"""Reading a file somebody else may have made: it must be a file, of bounded size, and where it says it is."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MIB = 1 << 20


def check_regular(path: Path, most_bytes: int, inside: Path | None = None) -> None:
    """Raises OSError where `path` is no file, holds more than `most_bytes`, or leads out of the folder `inside`.

    A pipe or a device is never opened: that may wait for ever, or do something.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "a pipe, socket or device, not a file", str(path))
    if status.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"{status.st_size} bytes; at most {most_bytes} are read", str(path))
    if inside is not None and not path.resolve().is_relative_to(inside.resolve()):
        raise OSError(errno.ELOOP, f"leads out of {inside}, to {path.resolve()}", str(path))


def read_regular(path: Path, most_bytes: int, inside: Path | None = None) -> bytes:
    """All bytes of a file. Raises OSError as `check_regular` does."""
    check_regular(path, most_bytes, inside)
    with open(path, "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"more than {most_bytes} bytes", str(path))
    return data
