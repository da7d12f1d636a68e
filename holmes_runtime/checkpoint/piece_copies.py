"""Each rank's files also into the folders of other hosts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from torch.distributed import ProcessGroup

from holmes_runtime.checkpoint.piece_index import PieceFile, PieceIndex
from holmes_runtime.checkpoint.piece_transfer import Incoming, Outgoing, Pace, exchange

COPIED_BYTES = 1 << 18  # at a time, which what training sends may have to wait for


def copy_files(
    folder: Path,
    index: PieceIndex,
    rank: int,
    copied_to: Mapping[int, tuple[int, ...]],
    group: ProcessGroup,
    pace: Pace,
) -> OSError | None:
    """Sends the files of `rank` in `folder` to the ranks `copied_to` names, and writes theirs; what went wrong here.

    Called by all ranks. A rank whose disk fails goes on with the exchange, as its peers wait.
    """
    with contextlib.suppress(OSError):  # which opening a file in it tells
        folder.mkdir(parents=True, exist_ok=True)
    given = [_Given(folder, file, target) for file in index.files if file.rank == rank for target in copied_to[rank]]
    taken = [_Taken(folder, file) for file in index.files if rank in copied_to[file.rank]]
    outgoing = [Outgoing(each.target, each.file.size_bytes, each.fill) for each in given]
    incoming = [Incoming(each.file.rank, each.file.size_bytes, each.take) for each in taken]
    exchange(outgoing, incoming, group, COPIED_BYTES, pace)
    for each in taken:
        each.finish()
    errors = [each.error for each in given] + [each.error for each in taken]
    return next((error for error in errors if error is not None), None)


class _Given:
    def __init__(self, folder: Path, file: PieceFile, target: int) -> None:
        self.file, self.target = file, target
        self.error: OSError | None = None
        self._path, self._at = folder / file.name, 0

    def fill(self, chunk: memoryview) -> None:
        try:
            with open(self._path, "rb") as source:
                source.seek(self._at)
                if source.readinto(chunk) != len(chunk):
                    raise OSError(f"{self._path} has become shorter")
        except OSError as error:
            self.error = self.error or error
        self._at += len(chunk)


class _Taken:
    def __init__(self, folder: Path, file: PieceFile) -> None:
        self.file = file
        self.error: OSError | None = None
        self._path, self._mode = folder / file.name, "xb"  # never over a file that is there

    def take(self, chunk: memoryview) -> None:
        try:
            if self.error is None:
                with open(self._path, self._mode) as target:
                    target.write(chunk)
                self._mode = "ab"
        except OSError as error:
            self.error = error

    def finish(self) -> None:
        """Waits until the file is on the disk."""
        try:
            if self.error is None:
                with open(self._path, "rb") as target:
                    os.fsync(target.fileno())
        except OSError as error:
            self.error = error
