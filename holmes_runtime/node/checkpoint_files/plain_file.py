"""Files in a checkpoint's folder, to which others may have added anything: only regular files count.

Links are not followed, as they may lead to any file that the reader may open. Pipes and devices are not waited for.
Free of torch.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader, FileIO
from pathlib import Path

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_plain(path: Path) -> FileIO:
    """Open the regular file at `path` for reading.

    Raises:
        OSError: it cannot be read, or is a link, a folder, a pipe, a socket or a device.
    """
    try:
        descriptor = os.open(path, _READ)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link, which is not followed", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "a folder, pipe, socket or device, not a file", str(path))
    return FileIO(descriptor, "rb")


def create_plain(path: Path) -> FileIO:
    """Open a new file at `path` for writing.

    Raises:
        OSError: something exists there, even a dangling link, or the file cannot be created.
    """
    return FileIO(os.open(path, _CREATE, 0o666), "wb")


def read_plain(path: Path, max_bytes: int) -> bytes:
    """Return all bytes of the regular file at `path`.

    Raises:
        OSError: as for `open_plain`, or the file has more than `max_bytes`.
    """
    with BufferedReader(open_plain(path)) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        data = file.read(size_bytes + 1) if size_bytes <= max_bytes else b""
    if size_bytes > max_bytes or len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"{max(size_bytes, len(data))} bytes; at most {max_bytes} are read", str(path))
    return data
