"""Write checkpoints on all ranks together: first each rank's own file, then copies for other hosts, then the names."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torch.distributed import ProcessGroup

from holmes_runtime.checkpoint.host_folders import HostFolders, OptionalText
from holmes_runtime.checkpoint.piece_copies import copy_files
from holmes_runtime.checkpoint.piece_files import files_of, joined_boxes, write_metadata, write_pieces
from holmes_runtime.checkpoint.piece_transfer import TransferPace
from holmes_runtime.checkpoint.tensor_piece import TensorPiece
from holmes_runtime.comm.record_exchange import all_gather_records, broadcast_record, gather_records
from holmes_runtime.config.checks import shown
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.node.checkpoint_files.checkpoint_folder import CheckpointFolder, newest_in, write_durably
from holmes_runtime.node.checkpoint_files.checkpoint_names import PieceName, SaveId
from holmes_runtime.node.checkpoint_files.description import (
    DESCRIPTION_FILE,
    Counters,
    Description,
    Origin,
    describe,
    kept_origin,
)
from holmes_runtime.node.checkpoint_files.memory_files import MemoryFiles
from holmes_runtime.node.checkpoint_files.piece_index import (
    INDEX_FILE,
    INDEX_VERSION,
    Merged,
    PieceIndex,
    Written,
    WrittenTensor,
    digest_of,
    index_text,
    sizes_of,
)
from holmes_runtime.node.checkpoint_files.whole_checkpoints import BestCheckpoint


class CheckpointWriter:
    """The part of rank `me` in each save. `generation` is the number of starts of the run.

    `digests` are of the data and, if any, of the frozen weights. `best` is the complete checkpoint with the lowest
    validation loss. All ranks know it, so all folders keep it.
    """

    def __init__(
        self,
        config: RunConfig,
        me: Rank,
        digests: tuple[str, str | None],
        folder: CheckpointFolder,
        folders: HostFolders,
        generation: int,
        memory: MemoryFiles,
        group: ProcessGroup,
    ) -> None:
        assert config.checkpoint is not None
        self._config, self._me, self._digests = config, me, digests
        self._folder, self._folders, self._generation = folder, folders, generation
        self._memory, self._group = memory, group
        self._copied_to = folders.copied_to(config.checkpoint.copies)
        self._newest: str | None = None
        self.loaded: Origin | None = None  # origin of the run that was loaded, kept in later checkpoints
        self.best: BestCheckpoint | None = None
        self.parts_of_better: list[BestCheckpoint] = []  # files are missing here; an absent host may have them
        self.note_newest()

    def note_newest(self) -> None:
        """Take the newest checkpoint that exists now as the one that the next save follows."""
        self._newest = self._newest_here()

    def _newest_here(self) -> str | None:
        """Return the name of the newest checkpoint; None also if `latest` cannot be read, as saving replaces it."""
        try:
            newest = newest_in(self._folder.path)
        except (OSError, ValueError):
            return None
        return newest.name if newest else None

    def write(self, pieces: dict[str, TensorPiece], counters: Counters, begun_by: str, pace: TransferPace) -> None:
        """Write one checkpoint. Each step begins after all ranks have done the one before. Old checkpoints go last.

        All ranks call this. Raises RuntimeError on all of them if one failed.
        """
        partial = self._folder.partial(counters.steps)
        mine = self._write_own(partial, pieces)
        merged = self._merge(mine, counters, begun_by)
        trouble = merged.trouble
        if trouble is None:
            copied = None
            if len(self._folders.hosts) > 1:  # with one folder for all, only rank 0 knows the pieces
                assert merged.pieces is not None
                copied = copy_files(partial, merged.pieces, self._me.rank, self._copied_to, self._group, pace)
            if copied is None:  # harmless if publishing fails: no published checkpoint has this id
                assert merged.save_id is not None
                self._memory.keep(merged.save_id, partial, self._own_names(mine, merged.pieces))
            trouble = self._troubles(copied)
        if trouble is None:
            trouble = self._troubles(self._publish(partial, merged.pieces, counters))
        if trouble is not None:
            raise RuntimeError(
                f"the checkpoint after {counters.steps} steps could not be written to {partial}; "
                f"those before it are whole: {trouble}"
            )
        loss = counters.validation_loss
        if loss is not None and (self.best is None or loss < self.best.loss):
            self.best = BestCheckpoint(loss, counters.steps)
        if self._folders.is_first(self._me.rank):
            parts = [each.steps for each in self.parts_of_better if self.best is None or each < self.best]
            self._folder.remove_old(counters.steps, parts if self.best is None else [self.best.steps, *parts])

    def _own_names(self, mine: Written, index: PieceIndex | None) -> set[PieceName]:
        """Return the files that this rank has written or copied."""
        copied = () if index is None else index.files
        written = {box.file for tensor in mine.tensors for box in tensor.boxes}
        return written | {file.name for file in copied if self._me.rank in self._copied_to[file.rank]}

    def _write_own(self, partial: Path, pieces: dict[str, TensorPiece]) -> Written:
        try:
            return Written(write_pieces(partial, pieces, self._me.rank), None)
        except Exception as error:  # torch's writer raises many types; all ranks get the error
            return Written((), self._in_words(error))

    def _in_words(self, error: Exception) -> str:
        """Return an error as text, with the host, the rank and the free space."""
        path, free = self._folder.path, "none"
        with contextlib.suppress(OSError):
            free = f"{shutil.disk_usage(path).free / 1e6:.0f} MB"
        return f"host {self._me.host}, rank {self._me.rank}: {error!r} ({free} free in {path})"

    def _troubles(self, mine: Exception | None) -> str | None:
        """Return the errors of all ranks as text; None if all succeeded."""
        said = all_gather_records(OptionalText(None if mine is None else self._in_words(mine)), self._group)
        return _joined(each.text for each in said)

    def _merge(self, mine: Written, counters: Counters, begun_by: str) -> Merged:
        """Gather on rank 0 what all ranks wrote, and return its index on the ranks that need it to publish."""
        all_written = gather_records(mine, self._group)
        trouble = _joined(written.trouble for written in all_written)
        index = None
        if self._me.rank == 0 and trouble is None:
            try:
                for rank, written in enumerate(all_written):
                    check_written_by(rank, written)
                tensors = [tensor for written in all_written for tensor in written.tensors]
                index = self._index(tensors, counters, begun_by)
            except Exception as error:  # of any type, as the others wait for the outcome
                trouble = self._in_words(error)
        told = index if len(self._folders.hosts) > 1 else None
        merged = broadcast_record(Merged(index.save_id if index else None, told, trouble), self._group)
        if merged.pieces is not None:
            self._check_files(merged.pieces, mine)
        return merged._replace(pieces=merged.pieces or index)

    def _check_files(self, index: PieceIndex, mine: Written) -> None:
        """Raise RuntimeError if the index has files of unknown ranks, or not the files that this rank wrote."""
        theirs = [file.name for file in index.files if file.rank not in self._copied_to]
        own = {file.name: file.size_bytes for file in index.files if file.rank == self._me.rank}
        if theirs or own != sizes_of(mine.tensors):
            raise RuntimeError(
                f"rank 0 describes other files than were written: {shown(theirs or own)}, seen by rank {self._me.rank}"
            )

    def _index(self, tensors: Iterable[WrittenTensor], counters: Counters, begun_by: str) -> PieceIndex:
        """Return the index of the tensors that all ranks wrote."""
        hosts = {
            rank.rank: tuple(
                host
                for at in (rank.rank, *self._copied_to[rank.rank])
                for host in self._folders.hosts[self._folders.number(at)]
            )
            for rank in self._config.ranks
        }
        together = joined_boxes(tensors)
        said = (INDEX_VERSION, SaveId(uuid.uuid4().hex), begun_by, self._generation, counters.steps)
        text = self._describe(counters).to_json()
        return PieceIndex(*said, digest_of(text.encode()), files_of(together, hosts), together)

    def _describe(self, counters: Counters) -> Description:
        described = describe(self._config, self._digests[0], counters, self._digests[1])
        if self.loaded is None:
            return described
        kept = kept_origin(self.loaded, described.origin)
        if self._config.lora is not None:  # frozen weights are read at each start, from a folder that may have moved
            kept = replace(kept, weights=described.origin.weights)
        return replace(described, origin=kept)

    def _publish(self, partial: Path, index: PieceIndex | None, counters: Counters) -> Exception | None:
        """On the first rank of a folder, give the checkpoint its name. Return the error, if any."""
        if not self._folders.is_first(self._me.rank):
            return None
        try:
            assert index is not None
            self._refuse_another_run()
            write_metadata(partial, index.tensors)
            write_durably(partial / DESCRIPTION_FILE, self._describe(counters).to_json())
            write_durably(partial / INDEX_FILE, index_text(index))
            self._folder.publish(counters.steps)
            self.note_newest()
        except Exception as error:  # of any type, as the others wait for the outcome
            return error
        return None

    def _refuse_another_run(self) -> None:
        """Raise RuntimeError if another run has saved into the folder: each would remove the other's checkpoints."""
        newest = self._newest_here()
        if newest is not None and newest != self._newest:
            raise RuntimeError(
                f"{self._folder.path / newest} was saved there by another run since this one began: set another "
                "`checkpoint.path` for one of them"
            )


def check_written_by(rank: int, written: Written) -> None:
    """Raise ValueError if `rank` claims to have written another rank's file."""
    others = [name for name in sizes_of(written.tensors) if name.rank != rank]
    if others:
        raise ValueError(f"rank {rank} says that it wrote {others[0]}, another rank's file")


def _joined(said: Iterable[str | None]) -> str | None:
    """Return the given texts joined; None if all are None."""
    return "; ".join(each for each in said if each is not None) or None
