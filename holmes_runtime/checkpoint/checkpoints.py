"""Saved states of a run: written in the background, whole or not at all, and loadable under any other plan.

A checkpoint is a folder with the tensors as torch.distributed.checkpoint stores them, and checkpoint.json. Each tensor
is saved whole, under its name in the whole model, as fp32: `weight/NAME`, `exp_avg/NAME` and `exp_avg_sq/NAME`. So a
checkpoint knows nothing of the plan that wrote it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from holmes_runtime.checkpoint.checkpoint_folder import (
    LATEST_FILE,
    CheckpointFolder,
    before,
    newest_in,
    write_durably,
)
from holmes_runtime.checkpoint.description import DESCRIPTION_FILE, Counters, Description, describe, differences
from holmes_runtime.checkpoint.piece_files import WrittenTensor, read_pieces, write_metadata, write_pieces
from holmes_runtime.checkpoint.reshard import TensorPiece, pieces_of
from holmes_runtime.checkpoint.snapshot import Snapshot
from holmes_runtime.comm.group_opening import new_control_group
from holmes_runtime.comm.record_exchange import all_gather_records, broadcast_record, gather_records
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.parallel.gradient_buckets import Shard

SEEN_WITHIN_S = 10.0  # how long a network file system may take to show a host what another wrote


class Answer(NamedTuple):
    """A name, or what went wrong; None if there is none, or nothing did."""

    text: str | None


class Written(NamedTuple):
    """What one rank wrote, or why it could not."""

    tensors: tuple[WrittenTensor, ...]
    trouble: str | None


class Checkpoints:
    """The checkpoints of one run, as one of its ranks sees them.

    Every method but `check` is called by all ranks. Saving happens in a thread, on a process group of its own: what a
    step would have to wait for is a copy of the rank's state in host memory.
    """

    def __init__(self, config: RunConfig, me: Rank, data_digest: str) -> None:
        """Raises RuntimeError if not all hosts see one folder, or if it holds a run that this one does not resume."""
        assert config.checkpoint is not None
        self._config, self._me, self._data_digest = config, me, data_digest
        self._folder = CheckpointFolder(Path(config.checkpoint.path), config.checkpoint.keep_last)
        self._group = new_control_group(config.timeout_s)
        self._saving: Future[None] | None = None
        self._snapshot = Snapshot()
        self.every_steps = config.checkpoint.every_steps
        if me.rank == 0:
            self._folder.make_ready()
        self._check_shared()
        self._newest = self._find_newest()
        if self._newest is not None and not config.resume:
            raise RuntimeError(
                f"{self._folder.path} holds a checkpoint, {self._newest.name}, and this run does not resume: "
                "resume it, or set another `checkpoint.path`"
            )

    def _check_shared(self) -> None:
        """Rank 0 writes a file that all others must see."""
        shared = self._folder.path
        witness = shared / f"shared-{self._config.run_id}"
        if self._me.rank == 0:
            witness.touch()
        dist.barrier(group=self._group)
        deadline_s = time.monotonic() + SEEN_WITHIN_S
        while not (seen := witness.exists()) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        writable = seen and os.access(shared, os.W_OK)
        answers = all_gather_records(Answer(None if writable else self._me.host), self._group)
        if self._me.rank == 0:
            witness.unlink()
        blind = sorted({answer.text for answer in answers if answer.text is not None})
        if blind:
            raise RuntimeError(
                f"checkpoint.path {shared} must be one folder that all hosts share and can write to; "
                f"{', '.join(blind)} cannot see or write what rank 0 made there"
            )

    def _find_newest(self) -> Path | None:
        """The newest checkpoint, as rank 0 sees it."""
        newest = newest_in(self._folder.path) if self._me.rank == 0 else None
        name = broadcast_record(Answer(newest.name if newest is not None else None), self._group).text
        return None if name is None else self._folder.path / name

    @property
    def is_empty(self) -> bool:
        """Whether there was none to go on from when this was made: the run starts from the beginning."""
        return self._newest is None

    def load(self, shards: Iterable[Shard]) -> Counters | None:
        """Reads the newest checkpoint into `shards`; None, and nothing done, if there is none.

        Raises RuntimeError naming the checkpoint if it is of another model or cannot be read.
        """
        folder = self._newest
        if folder is None:
            return None
        saved = Description.read(folder)
        wanted = describe(self._config, self._data_digest, saved.counters)
        wrong = differences(saved.shape, wanted.shape)
        if wrong:
            raise RuntimeError(f"checkpoint {folder} is of another model: {'; '.join(wrong)}")
        changed = differences(saved.trained_with, wanted.trained_with)
        if changed and self._me.rank == 0:
            print(f"resumes {folder} with other settings: {'; '.join(changed)}", flush=True)
        trouble = Answer(None)
        try:
            read_pieces(folder, pieces_of(shards))
        except CheckpointException as error:
            trouble = Answer(_reason(error))
        found = _by_rank(other.text for other in all_gather_records(trouble, self._group))
        if found is not None:
            older = before(folder)
            instead = f"; to go on from {older.name}, write that into {folder.parent}/{LATEST_FILE}" if older else ""
            raise RuntimeError(f"checkpoint {folder} cannot be read: {found}{instead}")
        return saved.counters

    def save(self, shards: Iterable[Shard], counters: Counters) -> None:
        """Copies the state, always to the same memory, and starts to write it; waits until the write before it is done.

        Raises RuntimeError if the write before it failed.
        """
        self.finish()
        is_first = self._me.tp_rank == 0
        mine = [shard for shard in shards if (is_first or not shard.part.is_whole) and not shard.is_copy]
        copies = self._snapshot.take(pieces_of(mine))
        self._saving = Future()
        # A daemon: when the run fails elsewhere, nobody waits for a write that waits for ranks that are gone.
        Thread(target=self._run, args=(self._saving, copies, counters), name="checkpoint", daemon=True).start()

    def check(self) -> None:
        """Raises RuntimeError if a write that was started has failed; waits for nothing."""
        if self._saving is not None and self._saving.done():
            self._saving.result()

    def finish(self) -> None:
        """Waits for the write that was started, if any. Raises RuntimeError if it failed."""
        if self._saving is not None:
            self._saving.result()

    def _run(self, outcome: Future[None], pieces: dict[str, TensorPiece], counters: Counters) -> None:
        try:
            self._write(pieces, counters)
        except Exception as error:  # all are raised again in the training thread
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    def _write(self, pieces: dict[str, TensorPiece], counters: Counters) -> None:
        partial = self._folder.partial(counters.steps)
        try:
            mine = Written(write_pieces(partial, pieces, self._me.rank), None)
        except Exception as error:  # torch's writer raises many kinds; all ranks hear of it
            mine = Written((), repr(error))
        all_written = gather_records(mine, self._group)
        trouble = _by_rank(written.trouble for written in all_written)
        if self._me.rank == 0 and trouble is None:
            trouble = self._publish(partial, all_written, counters)
        trouble = broadcast_record(Answer(trouble), self._group).text
        if trouble is not None:
            free = shutil.disk_usage(self._folder.path).free
            raise RuntimeError(
                f"the checkpoint after {counters.steps} steps could not be written to {partial}, where "
                f"{free / 1e6:.0f} MB are free; those before it are whole: {trouble}"
            )

    def _publish(self, partial: Path, all_written: Iterable[Written], counters: Counters) -> str | None:
        """Gives the checkpoint, which all ranks have written, its name; what went wrong, if anything."""
        try:
            write_metadata(partial, tuple(tensor for written in all_written for tensor in written.tensors))
            description = describe(self._config, self._data_digest, counters)
            write_durably(partial / DESCRIPTION_FILE, description.to_json())
            self._folder.publish(counters.steps)
        except Exception as error:  # whatever it is, the others wait to hear of it
            return f"rank 0: {error!r}"
        return None


def _reason(error: CheckpointException) -> str:
    """What this rank's own failure was."""
    return "; ".join(repr(failure[0]) for failure in error.failures.values())


def _by_rank(said: Iterable[str | None]) -> str | None:
    """What each rank that failed says; None if none did."""
    return "; ".join(f"rank {rank}: {each}" for rank, each in enumerate(said) if each is not None) or None
