"""Copies of each rank's files in the folders of other hosts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

from torch.distributed import ProcessGroup

from holmes_runtime.checkpoint.piece_transfer import Incoming, OutgoingPiece, TransferPace, exchange
from holmes_runtime.node.checkpoint_files.piece_index import PieceFile, PieceIndex
from holmes_runtime.node.checkpoint_files.plain_file import create_plain, open_plain


def copy_files(
    folder: Path,
    index: PieceIndex,
    rank: int,
    copied_to: Mapping[int, tuple[int, ...]],
    group: ProcessGroup,
    pace: TransferPace,
) -> OSError | None:
    """Send the files of `rank` in `folder` to the ranks in `copied_to`, and write theirs. Return this rank's error.

    All ranks call this. A rank whose disk fails continues with the exchange, as its peers wait for it.
    """
    with contextlib.suppress(OSError):  # opening a file in it reports the same error
        folder.mkdir(parents=True, exist_ok=True)
    mine = [file for file in index.files if file.rank == rank]
    with contextlib.ExitStack() as opened:
        given = [_SentFile(folder, file, target, opened) for file in mine for target in copied_to[rank]]
        taken = [_ReceivedFile(folder, file, opened) for file in index.files if rank in copied_to[file.rank]]
        outgoing = [OutgoingPiece(each.target, each.file.size_bytes, each.fill) for each in given]
        incoming = [Incoming(each.file.rank, each.file.size_bytes, each.take) for each in taken]
        exchange(outgoing, incoming, group, pace)
        for each in taken:
            each.finish()
    errors = [each.error for each in given] + [each.error for each in taken]
    return next((error for error in errors if error is not None), None)


class _SentFile:
    """A file to send. It is opened at its first bytes, as received ones are."""

    def __init__(self, folder: Path, file: PieceFile, target: int, opened: contextlib.ExitStack) -> None:
        self.file, self.target, self._path, self._opened = file, target, folder / file.name, opened
        self.error: OSError | None = None
        self._source: FileIO | None = None

    def fill(self, chunk: memoryview) -> None:
        """Fill `chunk` with the next bytes. After an error, leave it as it is."""
        try:
            if self._source is None:
                self._source = self._opened.enter_context(open_plain(self._path))
            while chunk:
                size = self._source.readinto(chunk)
                if not size:
                    raise OSError(f"{self._path} has become shorter")
                chunk = chunk[size:]
        except OSError as error:
            self.error = self.error or error


class _ReceivedFile:
    """A file to receive."""

    def __init__(self, folder: Path, file: PieceFile, opened: contextlib.ExitStack) -> None:
        self.file, self._path, self._opened = file, folder / file.name, opened
        self.error: OSError | None = None
        self._target: FileIO | None = None

    def take(self, chunk: memoryview) -> None:
        """Write the next bytes. After an error, write nothing more."""
        if self.error is not None:
            return
        try:
            if self._target is None:  # never over an existing file
                self._target = self._opened.enter_context(create_plain(self._path))
            while chunk:
                chunk = chunk[self._target.write(chunk) :]
        except OSError as error:
            self.error = error

    def finish(self) -> None:
        """Wait until the file is on the disk."""
        try:
            if self._target is not None and self.error is None:
                os.fsync(self._target.fileno())
        except OSError as error:
            self.error = error
