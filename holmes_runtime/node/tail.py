"""The lines of a file that another process writes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


class Tail:
    """New lines of a growing file; a last line without its end waits until it has one, or until `rest`.

    A file that its writer has put aside as `NAME.1`, to begin a new one, is read to its end first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode: int | None = None
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """Whole lines that have come since the last time; none of a file that is not there yet."""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            data = self._put_aside() if self._inode not in (None, inode) else b""
            self._inode = inode
            file.seek(self._offset)
            new = file.read()
            self._offset += len(new)
            *whole, self._rest = (self._rest + data + new).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")

    def rest(self) -> Iterator[str]:
        """The same, and a last line that has no end."""
        yield from self.lines()
        if self._rest:
            yield self._rest.decode(errors="replace")
            self._rest = b""

    def _put_aside(self) -> bytes:
        """What had not been read of the file before this one, which is read from its start."""
        offset, self._offset = self._offset, 0
        with contextlib.suppress(FileNotFoundError), open(f"{self._path}.1", "rb") as file:
            file.seek(offset)
            return file.read()
        return b""
