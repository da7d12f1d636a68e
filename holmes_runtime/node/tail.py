"""Files that ranks write, as their agent reads them: logs line by line, and complete files such as traces."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from holmes_runtime.config.messages import RankFile
from holmes_runtime.config.rank_metrics import RankFileKind, rank_file

CHUNK_BYTES = 1 << 20
PART_BYTES = 48 * 1024
MAX_KEPT_BYTES = 16 << 20
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01  # FALLOC_FL_* of linux/falloc.h


class Tail:
    """New lines of a growing file. A last line without an end waits until it has one, or until `rest`.

    If the writer moved the file to `NAME.1` to begin a new one, the old file is first read to its end. If the file
    system can free the start of a file (not NFS before 4.2), at most `most_kept_bytes` of what was read stay on disk.
    """

    def __init__(self, path: Path, most_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._path = path
        self._offset = self._freed = 0
        self._most_kept_bytes = most_kept_bytes
        self._inode: int | None = None
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """Yield whole lines that have arrived since the last call; none for a file that does not exist yet."""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            found = os.fstat(file.fileno())
            if self._inode not in (None, found.st_ino):
                yield from self._split(self._put_aside())
            self._inode = found.st_ino
            file.seek(self._offset)
            while self._offset < found.st_size:
                new = file.read(min(CHUNK_BYTES, found.st_size - self._offset))
                self._offset += len(new)
                yield from self._split(new)
            if self._offset - self._freed > self._most_kept_bytes:
                self._free()

    def rest(self) -> Iterator[str]:
        """Yield the same, and a last line that has no end."""
        yield from self.lines()
        if self._rest:
            yield self._rest.decode(errors="replace")
            self._rest = b""

    def _split(self, new: bytes) -> Iterator[str]:
        """Yield the whole lines. A line longer than a chunk comes in parts."""
        *whole, self._rest = (self._rest + new).split(b"\n")
        if len(self._rest) > CHUNK_BYTES:
            whole, self._rest = [*whole, self._rest], b""
        for line in whole:
            yield line.decode(errors="replace")

    def _put_aside(self) -> bytes:
        """Return the unread rest of the previous file. The current file is read from its start."""
        offset, self._offset, self._freed = self._offset, 0, 0
        with contextlib.suppress(FileNotFoundError), open(f"{self._path}.1", "rb") as file:
            file.seek(offset)
            return file.read()
        return b""

    def _free(self) -> None:
        """Free the space of what was read. The writer continues at the end of the file."""
        self._freed = self._offset
        with contextlib.suppress(OSError), open(self._path, "r+b") as file:
            start, length = ctypes.c_int64(0), ctypes.c_int64(self._offset)
            ctypes.CDLL(None).fallocate(file.fileno(), _PUNCH_HOLE_KEEP_SIZE, start, length)


class LeftFiles:
    """The traces and memory reports in the node's folder, as messages. Each is read once, as files appear complete."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: set[Path] = set()

    def new(self) -> Iterator[RankFile]:
        """Yield, in order, the parts of the files that have arrived since the last call."""
        kinds: tuple[RankFileKind, ...] = get_args(RankFileKind)
        for kind in kinds:
            prefix, suffix = rank_file(kind, 0).split("0")
            for path in sorted(self._folder.glob(f"{prefix}*{suffix}")):
                rank = re.fullmatch(r"\d+", path.name.removeprefix(prefix).removesuffix(suffix))
                if rank is not None and path not in self._read:
                    self._read.add(path)
                    yield from _parts(path, int(rank[0]), kind)


def _parts(path: Path, rank: int, kind: RankFileKind) -> Iterator[RankFile]:
    with open(path, "rb") as file:
        offset = 0
        while part := file.read(PART_BYTES):
            yield RankFile(rank, kind, offset, base64.b64encode(part).decode())
            offset += len(part)
