"""Saved states of a run: written in the background, whole or not at all, and loadable under any other plan.

The folder, which all hosts share, holds `latest` (the name of the newest whole checkpoint), `step-00000100` for the
state after 100 steps (tensors as torch.distributed.checkpoint stores them, and checkpoint.json), and while one is
written `step-00000200.partial`. Each tensor is saved whole, under its name in the whole model, as fp32:
`weight/NAME`, `exp_avg/NAME` and `exp_avg_sq/NAME`. So a checkpoint knows nothing of the plan that wrote it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint.state_dict_loader as dcp_loader
import torch.distributed.checkpoint.state_dict_saver as dcp_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from holmes_runtime.checkpoint.reshard import PieceLoadPlanner, PieceSavePlanner, TensorPiece
from holmes_runtime.checkpoint.safe_reader import SafeReader
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import Precision
from holmes_runtime.parallel.gradient_buckets import Shard

FORMAT_VERSION = 1
LATEST = "latest"
DESCRIPTION = "checkpoint.json"
PARTIAL = ".partial"
SEEN_WITHIN_S = 10.0  # how long a network file system may take to show a host what another wrote


@dataclass(frozen=True)
class Counters:
    """What is saved beside the tensors: steps of the run and of AdamW, and the loss scale of fp16 (else 1 and 0)."""

    steps: int
    optimizer_steps: int
    loss_scale: float
    good_steps: int


@dataclass(frozen=True)
class Description:
    """checkpoint.json. `shape` must be that of the run that loads it; `trained_with` may have changed."""

    format_version: int
    counters: Counters
    value_type: Precision
    shape: dict[str, Any]
    trained_with: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Description:
        """Of the checkpoint in `folder`. Raises ValueError naming the file if it is not one this version reads."""
        path = folder / DESCRIPTION
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format_version"] != FORMAT_VERSION:
                raise ValueError(f"{path}: format_version {data['format_version']}, this Holmes reads {FORMAT_VERSION}")
            return cls(**{**data, "counters": Counters(**data["counters"])})
        except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is no description of a checkpoint: {error}") from None


def describe(config: RunConfig, data_digest: str, counters: Counters) -> Description:
    """What a checkpoint of this run says of itself."""
    return Description(
        FORMAT_VERSION,
        counters,
        config.value_type,
        asdict(config.model),
        {"seed": config.seed, "global_batch_size": config.global_batch_size, "data": data_digest},
    )


def differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The keys whose values differ, such as `seed: 1 then, 2 now`."""
    keys = sorted(saved.keys() | now.keys())
    return [f"{key}: {saved.get(key)} then, {now.get(key)} now" for key in keys if saved.get(key) != now.get(key)]


def pieces_of(shards: Iterable[Shard]) -> dict[str, TensorPiece]:
    """All tensors a rank holds parts of, by their names in a checkpoint."""
    return {
        f"{kind}/{shard.name}": TensorPiece(values, shard.part, shard.start, shard.stop)
        for shard in shards
        for kind, values in (
            ("weight", shard.master),
            ("exp_avg", shard.exp_avg),
            ("exp_avg_sq", shard.exp_avg_sq),
        )
    }


class Checkpoints:
    """The checkpoints of one run, as one of its ranks sees them.

    Every method but `check` is called by all ranks. Saving happens in a thread, on a process group of its own: what a
    step would have to wait for is a copy of the rank's state in host memory.
    """

    def __init__(self, config: RunConfig, me: Rank, data_digest: str) -> None:
        """Raises RuntimeError if not all hosts see one folder, or if it holds a run that this one does not resume."""
        assert config.checkpoint is not None
        self._config, self._me, self._settings, self._data_digest = config, me, config.checkpoint, data_digest
        self._folder = Path(config.checkpoint.path)
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=config.timeout_s))
        self._saving: Future[None] | None = None
        self.every_steps = config.checkpoint.every_steps
        if me.rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            for stray in self._folder.glob(f"*{PARTIAL}"):
                shutil.rmtree(stray, ignore_errors=True)
        self._check_shared()
        self._newest = self._find_newest()
        if self._newest is not None and not config.resume:
            raise RuntimeError(
                f"{self._folder} holds a checkpoint, {self._newest.name}, and this run does not resume: resume it, or "
                "set another `checkpoint.path`"
            )

    def _check_shared(self) -> None:
        """Rank 0 writes a file that all others must see."""
        witness = [f"shared-{self._config.run_id}-{os.getpid()}"]
        if self._me.rank == 0:
            (self._folder / witness[0]).touch()
        dist.broadcast_object_list(witness, src=0, group=self._group)
        deadline_s = time.monotonic() + SEEN_WITHIN_S
        while not (seen := (self._folder / witness[0]).exists()) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        answers: list[str | None] = [None] * self._config.world_size
        writable = seen and os.access(self._folder, os.W_OK)
        dist.all_gather_object(answers, None if writable else self._me.host, group=self._group)
        if self._me.rank == 0:
            (self._folder / witness[0]).unlink()
        blind = sorted({host for host in answers if host is not None})
        if blind:
            raise RuntimeError(
                f"checkpoint.path {self._folder} must be one folder that all hosts share and can write to; "
                f"{', '.join(blind)} cannot see or write what rank 0 made there"
            )

    def _find_newest(self) -> Path | None:
        """The checkpoint `latest` names, as rank 0 reads it."""
        latest = self._folder / LATEST
        found = [latest.read_text(encoding="utf-8").strip() if self._me.rank == 0 and latest.exists() else None]
        dist.broadcast_object_list(found, src=0, group=self._group)
        return None if found[0] is None else self._folder / found[0]

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
        final = self._folder / f"step-{counters.steps:08d}"
        partial = final.with_name(final.name + PARTIAL)
        try:
            writer = FileSystemWriter(partial)
            dcp_saver.save(pieces, storage_writer=writer, planner=PieceSavePlanner(), process_group=self._group)
            if self._me.rank == 0:
                self._publish(partial, final, counters)
        except (CheckpointException, OSError) as error:
            reasons = _reasons(error) if isinstance(error, CheckpointException) else str(error)
            free = shutil.disk_usage(self._folder).free
            raise RuntimeError(
                f"the checkpoint after {counters.steps} steps could not be written to {partial}, where "
                f"{free / 1e6:.0f} MB are free; those before it are whole: {reasons}"
            ) from error

    def _publish(self, partial: Path, final: Path, counters: Counters) -> None:
        """Once all ranks have written: gives the folder its name, points `latest` to it, and removes old ones."""
        description = asdict(describe(self._config, self._data_digest, counters))
        _write_durably(partial / DESCRIPTION, json.dumps(description, indent=1) + "\n")
        if final.exists():
            _remove(final)
        partial.rename(final)
        pointer = self._folder / f"{LATEST}{PARTIAL}"
        _write_durably(pointer, final.name + "\n")
        pointer.replace(self._folder / LATEST)
        _sync_folder(self._folder)
        older = sorted(path for path in self._folder.glob("step-*") if path.name <= final.name and not path.suffix)
        for path in older[: -self._settings.keep_last]:
            _remove(path)


def _reasons(error: CheckpointException) -> str:
    """What each rank that failed says."""
    return "; ".join(f"rank {rank}: {failure[0]!r}" for rank, failure in sorted(error.failures.items()))


def _write_durably(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Removes a checkpoint; a kill halfway leaves nothing that could be taken for one."""
    condemned = folder.with_name(f"{folder.name}.old{PARTIAL}")
    folder.rename(condemned)
    shutil.rmtree(condemned, ignore_errors=True)
