"""Each rank's files also into the folders of other hosts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from torch.distributed import ProcessGroup

from holmes_runtime.checkpoint.piece_index import PieceFile, PieceIndex
from holmes_runtime.checkpoint.piece_transfer import Incoming, Outgoing, exchange


def copy_files(
    folder: Path, index: PieceIndex, rank: int, copied_to: Mapping[int, tuple[int, ...]], group: ProcessGroup
) -> OSError | None:
    """Sends the files of `rank` in `folder` to the ranks `copied_to` names, and writes theirs; what went wrong here.

    Called by all ranks. A rank whose disk fails goes on with the exchange, as its peers wait.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given = [_Given(folder, file, target) for file in index.files if file.rank == rank for target in copied_to[rank]]
    taken = [_Taken(folder, file) for file in index.files if rank in copied_to[file.rank]]
    outgoing = [Outgoing(each.target, each.file.size_bytes, each.fill) for each in given]
    incoming = [Incoming(each.file.rank, each.file.size_bytes, each.take) for each in taken]
    exchange(outgoing, incoming, group)
    for each in taken:
        each.close()
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
        self._target: BinaryIO | None = None
        try:
            self._target = open(folder / file.name, "wb")  # noqa: SIM115
        except OSError as error:
            self.error = error

    def take(self, chunk: memoryview) -> None:
        try:
            if self.error is None and self._target is not None:
                self._target.write(chunk)
        except OSError as error:
            self.error = error

    def close(self) -> None:
        """Waits until the file is on the disk."""
        try:
            if self._target is not None:
                with self._target:
                    self._target.flush()
                    os.fsync(self._target.fileno())
        except OSError as error:
            self.error = self.error or error
