"""Lines in a file of bounded size, kept as its newest part and the part before that."""

from __future__ import annotations

import contextlib
import errno
import os
from io import FileIO
from pathlib import Path

from holmes_core.records.record_file import private_opener
from holmes_core.records.regular_file import MIB

PART_BYTES = 64 * MIB  # limit of each of the two parts


def part_before(log: Path) -> Path:
    """Return the path of the part before the newest one."""
    return log.with_name(f"{log.name}.1")


def open_to_append(path: Path) -> FileIO:
    """Open a private file for appending, unbuffered: a buffer could hold data that a full disk refused."""
    return open(path, "ab", buffering=0, opener=private_opener)


def append(file: FileIO, data: bytes) -> None:
    """Append all of `data` or nothing. Raises OSError, also if a full disk has room for only a part."""
    before_bytes = file.tell()
    written_bytes = file.write(data)
    if written_bytes != len(data):
        with contextlib.suppress(OSError):
            file.truncate(before_bytes)
            file.seek(before_bytes)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class BoundedLog:
    """Appends lines, each one immediately. A full newest part replaces the part before."""

    def __init__(self, path: Path, part_bytes: int = PART_BYTES) -> None:
        self._path, self._part_bytes = path, part_bytes
        self._open()

    def write(self, line: str) -> None:
        """Append a line."""
        data = f"{line}\n".encode()
        if self._bytes and self._bytes + len(data) > self._part_bytes:
            full = self._file
            with contextlib.suppress(FileNotFoundError):  # replaced earlier, when there was no room to open the next
                self._path.replace(part_before(self._path))
            self._open()
            full.close()
        append(self._file, data)
        self._bytes += len(data)

    def close(self) -> None:
        self._file.close()

    def _open(self) -> None:
        self._file = open_to_append(self._path)
        self._bytes = self._file.tell()
