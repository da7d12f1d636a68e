"""The lines of a file that another process writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


class Tail:
    """New lines of a growing file; a last line without its end waits until it has one, or until `rest`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """Whole lines that have come since the last time; none of a file that is not there yet."""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
            self._offset += len(data)
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")

    def rest(self) -> Iterator[str]:
        """The same, and a last line that has no end."""
        yield from self.lines()
        if self._rest:
            yield self._rest.decode(errors="replace")
            self._rest = b""
