"""Open and read a file that others may have made: a regular file, of bounded size, in the expected folder.

OSError is the only error, also for a name that no file can have, such as one with a NUL character.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MIB = 1 << 20
# O_NONBLOCK: a pipe put in the file's place after the check does not block the opening.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def open_regular(path: Path, max_bytes: int, inside: Path | None = None) -> BinaryIO:
    """Open a regular file of at most `max_bytes`; after following links it must lie in `inside`, if given.

    A pipe or a device is not opened: that may block for ever, or have side effects.

    Raises:
        OSError: It is no such file, or cannot be read.
    """
    try:
        _check_status(path.stat(), path, max_bytes)
        descriptor = os.open(path, _FLAGS) if inside is None else _open_inside(path, inside)
    except ValueError:
        raise OSError(errno.EINVAL, "no name of a file", repr(str(path))) from None
    try:
        _check_status(os.fstat(descriptor), path, max_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def read_regular(path: Path, max_bytes: int, inside: Path | None = None) -> bytes:
    """Return all bytes of a file.

    Raises:
        OSError: As `open_regular`; also where the file grows beyond `max_bytes` while it is read.
    """
    with open_regular(path, max_bytes, inside) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {max_bytes} bytes", str(path))
    return data


def is_there(path: Path) -> bool:
    """Return True if anything is at `path`, even a dangling link or something that cannot be opened."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True
    return True


def _open_inside(path: Path, inside: Path) -> int:
    """Open the target of `path` step by step below `inside`, so that no later link leads out."""
    folder, file = Path(os.path.realpath(inside, strict=True)), Path(os.path.realpath(path, strict=True))
    if not file.is_relative_to(folder):
        raise OSError(errno.ELOOP, f"leads out of {inside}, to {file}", str(path))
    *parents, name = file.relative_to(folder).parts
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for parent in parents:
            step = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
            os.close(held)
            held = step
        return os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=held)
    finally:
        os.close(held)


def _check_status(status: os.stat_result, path: Path, max_bytes: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "a pipe, socket or device, not a file", str(path))
    if status.st_size > max_bytes:
        raise OSError(errno.EFBIG, f"{status.st_size} bytes; at most {max_bytes} are read", str(path))
