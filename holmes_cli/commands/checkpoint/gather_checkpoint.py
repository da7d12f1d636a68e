"""One portable checkpoint out of the folders of several hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from io import BufferedWriter
from pathlib import Path

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_runtime.node.checkpoint_files.checkpoint_folder import CheckpointFolder
from holmes_runtime.node.checkpoint_files.description import DESCRIPTION_FILE
from holmes_runtime.node.checkpoint_files.piece_index import (
    INDEX_FILE,
    MAX_INDEX_BYTES,
    DamagedPiece,
    PieceFile,
    PieceIndex,
    damage_in,
    read_index,
)
from holmes_runtime.node.checkpoint_files.plain_file import create_plain, open_plain, read_plain
from holmes_runtime.node.checkpoint_files.whole_checkpoints import WholeCheckpoint

METADATA_FILE = ".metadata"  # torch's, by which its tools read the checkpoint
COPY_BYTES = 1 << 20  # at a time


def index_of(found: WholeCheckpoint, folders: Sequence[Path]) -> PieceIndex:
    """Return the index of a checkpoint from the first of its folders. Raises HolmesError if it is no longer there."""
    checkpoint = folders[found.folders[0]] / found.offer.name
    try:
        index = read_index(checkpoint)
    except DamagedPiece as error:
        raise HolmesError(str(error), "run it again once nothing writes there", ANSWER_IS_NO) from None
    if index.files != found.offer.files:
        raise HolmesError(f"{checkpoint} has just changed", "run it again once nothing writes there", ANSWER_IS_NO)
    return index


def damaged(found: WholeCheckpoint, folders: Sequence[Path]) -> Iterator[str]:
    """Yield a sentence on each damaged file of a checkpoint in any folder; all bytes are read."""
    index = index_of(found, folders)
    for name, holders in found.holders.items():
        for at in holders:
            fault = damage_in(folders[at] / found.offer.name, index, name)
            if fault is not None:
                yield fault


def gather(found: WholeCheckpoint, folders: Sequence[Path], output: Path) -> int:
    """Write the checkpoint to `output`, each file from a folder with an intact copy; return the bytes.

    It gets its name only once it is whole. Raises HolmesError, and leaves nothing, if no folder has an intact copy of a
    file.
    """
    index, target = index_of(found, folders), CheckpointFolder(output, keep_last=1)
    partial, source = target.partial(index.steps), folders[found.folders[0]] / found.offer.name
    try:
        target.make_ready()
        partial.mkdir()
        for file in index.files:
            with (
                open_plain(_sound(found, folders, index, file)) as read,
                BufferedWriter(create_plain(partial / file.name)) as written,
            ):
                shutil.copyfileobj(read, written, COPY_BYTES)
        for name in (METADATA_FILE, DESCRIPTION_FILE, INDEX_FILE):
            with BufferedWriter(create_plain(partial / name)) as written:
                written.write(read_plain(source / name, MAX_INDEX_BYTES))
        target.publish(index.steps)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise HolmesError(f"cannot write {output}: {error}", "nothing was left behind", ANSWER_IS_NO) from None
    except HolmesError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return sum(file.size_bytes for file in index.files)


def _sound(found: WholeCheckpoint, folders: Sequence[Path], index: PieceIndex, file: PieceFile) -> Path:
    """Return the path of an intact copy of the file."""
    faults = []
    for at in found.holders[file.name]:
        checkpoint = folders[at] / found.offer.name
        fault = damage_in(checkpoint, index, file.name)
        if fault is None:
            return checkpoint / file.name
        faults.append(fault)
    what = f"{found.offer.name}: no folder has {file.name} as it was written: {'; '.join(faults)}"
    raise HolmesError(what, f"add the folder of another host that had it: {', '.join(file.hosts)}", ANSWER_IS_NO)
