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
from datetime import timedelta
from pathlib import Path
from threading import Thread

import torch.distributed as dist
import torch.distributed.checkpoint.state_dict_loader as dcp_loader
import torch.distributed.checkpoint.state_dict_saver as dcp_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from holmes_runtime.checkpoint.checkpoint_folder import CheckpointFolder, newest_in, write_durably
from holmes_runtime.checkpoint.description import DESCRIPTION_FILE, Counters, Description, describe, differences
from holmes_runtime.checkpoint.reshard import PieceLoadPlanner, PieceSavePlanner, TensorPiece, pieces_of
from holmes_runtime.checkpoint.safe_reader import SafeReader
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.parallel.gradient_buckets import Shard

SEEN_WITHIN_S = 10.0  # how long a network file system may take to show a host what another wrote


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
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=config.timeout_s))
        self._saving: Future[None] | None = None
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
        witness = [f"shared-{self._config.run_id}-{os.getpid()}"]
        if self._me.rank == 0:
            (shared / witness[0]).touch()
        dist.broadcast_object_list(witness, src=0, group=self._group)
        deadline_s = time.monotonic() + SEEN_WITHIN_S
        while not (seen := (shared / witness[0]).exists()) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        answers: list[str | None] = [None] * self._config.world_size
        writable = seen and os.access(shared, os.W_OK)
        dist.all_gather_object(answers, None if writable else self._me.host, group=self._group)
        if self._me.rank == 0:
            (shared / witness[0]).unlink()
        blind = sorted({host for host in answers if host is not None})
        if blind:
            raise RuntimeError(
                f"checkpoint.path {shared} must be one folder that all hosts share and can write to; "
                f"{', '.join(blind)} cannot see or write what rank 0 made there"
            )

    def _find_newest(self) -> Path | None:
        """The newest checkpoint, as rank 0 sees it."""
        newest = newest_in(self._folder.path) if self._me.rank == 0 else None
        name = [newest.name if newest is not None else None]
        dist.broadcast_object_list(name, src=0, group=self._group)
        return None if name[0] is None else self._folder.path / name[0]

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
        try:
            dcp_loader.load(
                dict(pieces_of(shards)),
                storage_reader=SafeReader(folder),
                planner=PieceLoadPlanner(),
                process_group=self._group,
            )
        except CheckpointException as error:
            raise RuntimeError(f"checkpoint {folder} cannot be read: {_reasons(error)}") from error
        return saved.counters

    def save(self, shards: Iterable[Shard], counters: Counters) -> None:
        """Copies the state and starts to write it; waits for the write before it, if that is not done.

        Raises RuntimeError if the write before it failed.
        """
        self.finish()
        mine = [shard for shard in shards if self._me.tp_rank == 0 or not shard.part.is_whole]
        copies = {name: piece.snapshot() for name, piece in pieces_of(mine).items()}
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
            writer = FileSystemWriter(partial)
            dcp_saver.save(pieces, storage_writer=writer, planner=PieceSavePlanner(), process_group=self._group)
            if self._me.rank == 0:  # once all ranks have written
                description = describe(self._config, self._data_digest, counters)
                write_durably(partial / DESCRIPTION_FILE, description.to_json())
                self._folder.publish(counters.steps)
        except (CheckpointException, OSError) as error:
            reasons = _reasons(error) if isinstance(error, CheckpointException) else str(error)
            free = shutil.disk_usage(self._folder.path).free
            raise RuntimeError(
                f"the checkpoint after {counters.steps} steps could not be written to {partial}, where "
                f"{free / 1e6:.0f} MB are free; those before it are whole: {reasons}"
            ) from error


def _reasons(error: CheckpointException) -> str:
    """What each rank that failed says."""
    return "; ".join(f"rank {rank}: {failure[0]!r}" for rank, failure in sorted(error.failures.items()))
