"""The bytes of a file, or of memory, read piece by piece. Free of torch.

Files are read, not mapped: if a mapped file is truncated during a run, the process dies without a message.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

# The digest reads everything up to 16 MiB, then evenly spaced blocks.
BLOCK_BYTES = 4096
BLOCKS = 4096


class StoredBytes(Protocol):
    """`size` bytes, read by position."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, stop: int) -> bytearray:
        """Return bytes [start, stop), which must exist."""


class FileBytes:
    """The bytes of a file at its current size. Raises OSError naming it if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, start: int, stop: int) -> bytearray:
        """Return bytes [start, stop). Raises OSError naming file and position if they cannot be read or are missing."""
        found, buffer = 0, bytearray(stop - start)
        try:
            while found < len(buffer):  # one call reads at most 2 GiB
                count = os.preadv(self._descriptor, [memoryview(buffer)[found:]], start + found)
                if count == 0:
                    break
                found += count
        except OSError as error:
            raise OSError(f"{self.path} cannot be read from byte {start} on: {error.strerror}") from None
        if found < len(buffer):
            raise OSError(
                f"{self.path} was truncated: {len(buffer)} bytes expected from byte {start} on, {found} found; it had "
                f"{self.size} bytes when it was opened: restore the file and resume the run"
            )
        return buffer


class MemoryBytes:
    """The bytes of an array."""

    def __init__(self, buffer: array[int]) -> None:
        self._view = memoryview(buffer).cast("B")
        self.size = self._view.nbytes

    def read(self, start: int, stop: int) -> bytearray:
        return bytearray(self._view[start:stop])


def digest_of(files: Sequence[StoredBytes]) -> str:
    """Return a digest of the sizes of `files` and of evenly spaced blocks of them."""
    step = max(BLOCK_BYTES, sum(file.size for file in files) // BLOCKS)
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.size.to_bytes(8, "little"))
        for offset in range(0, file.size, step):
            digest.update(file.read(offset, min(offset + BLOCK_BYTES, file.size)))
    return digest.hexdigest()
