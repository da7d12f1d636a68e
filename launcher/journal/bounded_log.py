"""Lines as a file that does not grow without bound: its newest part, and the part before that."""

from __future__ import annotations

from pathlib import Path

from holmes_core.records.record_file import private_opener
from holmes_core.records.regular_file import MIB

PART_BYTES = 64 * MIB  # the newest part is at most so large, and so is the one before


def part_before(log: Path) -> Path:
    """Where the part before the newest one lies, if there is one."""
    return log.with_name(f"{log.name}.1")


class BoundedLog:
    """Appends lines, each flushed. When the newest part is full it becomes the part before, whose place it takes."""

    def __init__(self, path: Path, part_bytes: int = PART_BYTES) -> None:
        self._path, self._part_bytes = path, part_bytes
        self._open()

    def write(self, line: str) -> None:
        """Append a line."""
        data = f"{line}\n".encode()
        if self._bytes and self._bytes + len(data) > self._part_bytes:
            self._file.close()
            self._path.replace(part_before(self._path))
            self._open()
        self._file.write(data)
        self._file.flush()
        self._bytes += len(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self) -> None:
        self._file = open(self._path, "ab", opener=private_opener)  # noqa: SIM115
        self._bytes = self._file.tell()
