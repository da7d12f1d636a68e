"""Saved states of a run: written in the background, complete or not at all, and loadable under any other plan.

A checkpoint is a folder with the tensors as torch.distributed.checkpoint stores them, checkpoint.json and pieces.json.
Each tensor is saved whole, under its name in the whole model, as fp32: `weight/NAME`, `exp_avg/NAME` and
`exp_avg_sq/NAME`; frozen ones are not saved. A checkpoint is therefore independent of the plan that wrote it. If hosts
have separate folders, each holds the files of its ranks and copies of others. Together they hold the checkpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

from holmes_runtime.checkpoint.checkpoint_writer import CheckpointWriter
from holmes_runtime.checkpoint.host_folders import find_folders
from holmes_runtime.checkpoint.piece_loading import OwnFiles, PieceLoading
from holmes_runtime.checkpoint.piece_transfer import TransferPace
from holmes_runtime.checkpoint.snapshot import Snapshot
from holmes_runtime.checkpoint.tensor_piece import TensorPiece, pieces_of
from holmes_runtime.comm.group_opening import new_control_group
from holmes_runtime.comm.record_exchange import all_gather_records, broadcast_record
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.node.admission.own_sockets import beside_newer, own_connections
from holmes_runtime.node.checkpoint_files.checkpoint_folder import CheckpointFolder, steps_of
from holmes_runtime.node.checkpoint_files.description import (
    DESCRIPTION_FILE,
    Counters,
    Description,
    changed_settings,
    describe,
    differences,
)
from holmes_runtime.node.checkpoint_files.memory_files import MemoryFiles
from holmes_runtime.node.checkpoint_files.piece_index import DamagedPiece, ReadIndex, read_index
from holmes_runtime.node.checkpoint_files.whole_checkpoints import (
    Offers,
    WholeCheckpoint,
    before,
    best_of,
    found_in,
    offers_in,
    read_description,
    thin_best,
)
from holmes_runtime.parallel.gradient_buckets import Shard
from holmes_runtime.rank_notices import RankNotices

NOTHING: Mapping[str, TensorPiece] = {}
# Parts of the time between two saves: the part over which copies are sent, and the part after which they no longer
# give way to training. If a host is lost before its copies are complete, the steps since the previous save are lost.
SPREAD, LATEST = 0.15, 0.2


class Checkpoints:
    """The checkpoints of one run, as seen by one of its ranks.

    All ranks call every method except `check` and `await_copy`. A thread saves, on its own process group. A step waits
    for the thread only before it updates the state, until a copy of the state is in host memory.
    """

    def __init__(
        self, config: RunConfig, me: Rank, data_digest: str, notices: RankNotices, frozen_weights: str | None = None
    ) -> None:
        """`frozen_weights` is their identity, if any are frozen.

        Raise RuntimeError if a host cannot write, or if folders hold a run that this one does not resume."""
        assert config.checkpoint is not None
        self._config, self._me, self._notices = config, me, notices
        self._digests = data_digest, frozen_weights
        self._folder = CheckpointFolder(Path(config.checkpoint.path), config.checkpoint.keep_last)
        of_training = own_connections()
        self._group = new_control_group(config.timeout_s)
        self._saving: Future[None] | None = None
        self._snapshot = Snapshot()
        self._every_steps, self._copies = config.checkpoint.every_steps, config.checkpoint.copies
        self._has_too_few = False  # too few copies of the checkpoint that this run resumed
        self._steps = 0  # steps of the newest checkpoint
        self._pace = TransferPace()
        self._saved_s: float | None = None
        self._folders = find_folders(self._folder.path, me, config.ranks, self._group)
        self._of_training = beside_newer(of_training)  # traffic on these goes before copies
        self._is_first = self._folders.is_first(me.rank)
        if self._is_first:
            self._folder.make_ready()
        self._offers = self._all_offers()
        generation = 1 + max((offer.generation for each in self._offers for offer in each.offers), default=0)
        self._found = found_in(self._offers)
        if config.resume_step is not None:
            self._require(config.resume_step)
        self._faults = [fault for each in self._offers for fault in each.faults]
        self._begun_by = config.run_id
        self._memory = MemoryFiles(me, config.ranks, os.environ)
        self._writer = CheckpointWriter(
            config, me, self._digests, self._folder, self._folders, generation, self._memory, self._group
        )
        if not self.is_empty and not config.resume:
            holder = next((each for each in self._offers if each.latest is not None), None)
            there = f"{self._place(holder)} holds a checkpoint, {holder.latest}," if holder else "; ".join(self._faults)
            raise RuntimeError(f"{there} and this run does not resume: resume it, or set another `checkpoint.path`")
        if self.is_empty and config.resume and not config.from_scratch:
            hosts = ", ".join(host for hosts in self._folders.hosts for host in hosts)
            raise RuntimeError(
                f"{self._folder.path} holds no checkpoint on {hosts}, and this run resumes one: correct "
                "`checkpoint.path`, mount the folder, or begin at step 1 with --from-scratch"
            )

    def _all_offers(self) -> list[Offers]:
        """Return the checkpoints in each folder, in folder order."""
        path = self._folder.path
        mine = offers_in(self._me.host, path) if self._is_first else Offers("", "", None, (), ())
        by_rank = all_gather_records(mine, self._group)
        return [by_rank[self._folders.ranks_at(number)[0]] for number in range(len(self._folders.hosts))]

    def _require(self, steps: int) -> None:
        """Raise RuntimeError unless the checkpoint after `steps` is complete."""
        whole = sorted((found.offer.steps, found.offer.name) for found in self._found if found.is_whole)
        if steps not in (each for each, _ in whole):
            there = ", ".join(name for _, name in whole) or "none"
            faults = "".join(f"; {fault}" for each in self._offers for fault in each.faults if not each.offers)
            raise RuntimeError(f"{self._folder.path} has no whole checkpoint of step {steps}; it has: {there}{faults}")

    def _place(self, folder: Offers) -> str:
        """Return the host and the path, or only the path if all hosts share one folder."""
        return f"host {folder.host}: {folder.path}" if len(self._offers) > 1 else folder.path

    @property
    def is_empty(self) -> bool:
        """True if no checkpoint existed when this was made: the run starts from the beginning."""
        return all(each.latest is None and not each.faults for each in self._offers)

    def is_due(self, before: int, steps: int) -> bool:
        """Return True if the state after `steps` is to be saved; the steps since `before` are new.

        Also return True at once if losing a host now would lose the run.
        """
        return steps // self._every_steps > before // self._every_steps or self._has_too_few

    def load(self, shards: Iterable[Shard], more: Mapping[str, TensorPiece] = NOTHING) -> Counters | None:
        """Read the newest complete checkpoint into `shards`. Return None, and change nothing, if there is none.

        Values of `more` that the checkpoint lacks stay as they are.

        Files missing in a rank's folder come from peers. With separate folders, if no newer checkpoint is complete, an
        older one is loaded with a warning. With one folder for all hosts, the user decides. Raises RuntimeError naming
        the checkpoint, host and file if it is for another model or cannot be read.
        """
        if self.is_empty:
            return None
        self._warn(self._faults)
        pieces, reasons = pieces_of(shards), list(self._faults)
        for found in self._candidates():
            counters, fault = self._load(found, pieces, more)
            if fault is None:
                if self._config.resume_step is not None and self._is_first:
                    self._folder.go_back(self._config.resume_step)
                    self._writer.note_newest()
                self._begun_by = found.offer.begun_by
                self._steps = found.offer.steps
                self._notices.say("start", self._origin(found), found.offer.steps)
                assert counters is not None
                self._find_best(before(self._found, counters))
                self._has_too_few = found.has_fewer(min(self._copies, len(self._offers)))
                return counters
            reasons.append(f"{found.offer.name}: {fault}")
            if len(self._offers) > 1:
                self._warn([f"checkpoint {found.offer.name} cannot be read and is left out: {fault}"])
        raise RuntimeError(self._unreadable(reasons))

    @property
    def best(self) -> str | None:
        """The path and loss of the checkpoint with the lowest validation loss; None if no checkpoint has a loss."""
        best = self._writer.best
        return None if best is None else f"{self._folder.named(best.steps)} (validation loss {best.loss:.4f})"

    def _find_best(self, earlier: Sequence[WholeCheckpoint]) -> None:
        self._writer.best = best_of(earlier)
        for each in earlier:
            lower = each.validated
            if lower is not None and (self._writer.best is None or lower < self._writer.best):
                name = f"{each.offer.name} (validation loss {lower.loss:.4f})"
                self._writer.parts_of_better.append(lower)
                self._warn(
                    [f"checkpoint {name} is incomplete and no longer the best; its files here stay: {each.lacking[0]}"]
                )
        self._say_best()
        thin = thin_best(earlier, min(self._copies, len(self._offers)))
        self._warn([thin] if thin is not None else [])

    def _say_best(self) -> None:
        if self._writer.best is not None:
            self._notices.say("best", f"the best checkpoint is {self.best}", self._writer.best.steps)

    def _origin(self, found: WholeCheckpoint) -> str:
        hosts = [host for at in found.folders for host in self._folders.hosts[at]]
        where = f" on {', '.join(hosts)}" if len(self._offers) > 1 else ""
        folder = self._folder.path / found.offer.name
        return f"resumed after step {found.offer.steps} of {self._config.steps} from {folder}{where}"

    def _candidates(self) -> list[WholeCheckpoint]:
        """Return the checkpoints to try, newest first: `latest` in one shared folder, or only `resume_step`."""
        if self._config.resume_step is not None:
            return [found for found in self._found if found.offer.steps == self._config.resume_step]
        if len(self._offers) > 1:
            return self._found
        return [found for found in self._found if found.offer.name == self._offers[0].latest]

    def _unreadable(self, reasons: list[str]) -> str:
        if len(self._offers) > 1:
            hosts = ", ".join(host for hosts in self._folders.hosts for host in hosts)
            return f"the folders {self._folder.path} of {hosts} hold no checkpoint that is whole: {'; '.join(reasons)}"
        candidates = [found.offer.name for found in self._candidates()]
        name = candidates[0] if candidates else self._offers[0].latest
        if name is None:
            return f"the checkpoints of {self._folder.path} cannot be read: {'; '.join(reasons)}"
        folder = self._folder.path / name
        older = [each.offer for each in self._found if each.is_whole and each.offer.steps < steps_of(folder)]
        instead = f"; to go on from {older[0].name}: holmes launch --resume-step {older[0].steps}" if older else ""
        return f"checkpoint {folder} cannot be read: {'; '.join(reasons)}{instead}"

    def _load(
        self, found: WholeCheckpoint, pieces: dict[str, TensorPiece], more: Mapping[str, TensorPiece]
    ) -> tuple[Counters | None, str | None]:
        """Read one checkpoint. Return its counters, or why it cannot be read; the result is the same on all ranks."""
        if not found.is_whole:
            return None, "; ".join(found.lacking)
        folder = self._folder.path / found.offer.name
        described = self._described(folder, found)
        if described.pieces is None:
            return None, described.fault
        if (described.pieces.save_id, described.pieces.files) != (found.offer.save_id, found.offer.files):
            return None, f"the index of {folder} has changed since a moment ago"
        try:
            saved = Description.parse(described.description, folder / DESCRIPTION_FILE)
        except ValueError as error:
            return None, str(error)
        wanted = describe(self._config, self._digests[0], saved.counters, self._digests[1])
        wrong = differences(saved.model, wanted.model)
        if wrong:
            raise RuntimeError(f"checkpoint {folder} is of another model: {'; '.join(wrong)}")
        changed = changed_settings(saved, wanted)
        if changed:
            self._warn([f"{folder} was saved with other settings: {'; '.join(changed)}"])
        places = [f"{self._place(each)}/{found.offer.name}" for each in self._offers]
        there = {tensor.name for tensor in described.pieces.tensors}
        pieces = {**pieces, **{name: piece for name, piece in more.items() if name in there}}
        own = OwnFiles(folder, self._memory.of_save(described.pieces.save_id))
        loading = PieceLoading(described.pieces, pieces, own, found.holders, places, self._folders, self._me)
        fault, damage = loading.load(self._group)
        if fault is None:
            self._warn(f"{sentence}: read from another folder" for sentence in (*found.lost, *damage))
            self._writer.loaded = saved.origin
        return saved.counters, fault

    def _described(self, folder: Path, found: WholeCheckpoint) -> ReadIndex:
        """Return the index and description of a checkpoint from the first folder that has it."""
        source = self._folders.ranks_at(found.folders[0])[0]
        mine = ReadIndex(None, "", None)
        if self._me.rank == source:
            try:
                index = read_index(folder)
                mine = ReadIndex(index, read_description(folder, index), None)
            except DamagedPiece as error:
                mine = ReadIndex(None, "", f"host {self._me.host}: {error}")
        return broadcast_record(mine, self._group, source)

    def _warn(self, sentences: Iterable[str]) -> None:
        """Report, once, warnings that all ranks know."""
        for sentence in sentences:
            self._notices.say("warning", sentence)

    def save(self, shards: Iterable[Shard], counters: Counters, more: Mapping[str, TensorPiece] = NOTHING) -> None:
        """Start to copy the state and to write it, after waiting for the previous write.

        `shards` and `more` must always be the same, and must not change before `await_copy` has returned. Every piece
        of `more` is saved once: no two ranks have the same one. Raises RuntimeError if the previous write failed.
        """
        self.finish()
        is_first = self._me.tp_rank == 0
        mine = [shard for shard in shards if (is_first or not shard.part.is_whole) and not shard.is_copy]
        self._snapshot.start({**pieces_of(mine), **more})
        self._saving, self._has_too_few, self._steps = Future(), False, counters.steps
        now_s = time.monotonic()
        between_s = 0.0 if self._saved_s is None else now_s - self._saved_s  # nothing is safe before the first
        self._saved_s = now_s
        self._pace = TransferPace(SPREAD * between_s, LATEST * between_s, self._of_training)
        # A daemon thread: if the run fails elsewhere, the process ends even if a write still waits for lost ranks.
        Thread(target=self._run, args=(self._saving, counters), name="checkpoint", daemon=True).start()

    def await_copy(self) -> None:
        """Return when the saved state may be changed."""
        self._snapshot.await_copy()

    def check(self) -> None:
        """Raise RuntimeError if a write has failed. Do not wait."""
        if self._saving is not None and self._saving.done():
            self._saving.result()

    def finish(self) -> None:
        """Wait for the current write, if any. Raises RuntimeError if it failed."""
        self._pace.hurry()
        if self._saving is not None:
            self._saving.result()

    def close(self, is_over: bool = False) -> None:
        """Wait as `finish` does. After the last step, or in a run that `is_over`, remove the files kept in memory."""
        self.finish()
        for connection in self._of_training:  # peers see the end once this process has closed every copy
            connection.close()
        if is_over or self._steps >= self._config.steps:
            self._memory.remove()

    def _run(self, outcome: Future[None], counters: Counters) -> None:
        try:
            self._writer.write(self._snapshot.finish(), counters, self._begun_by, self._pace)
            sentence = f"the checkpoint after step {counters.steps} is whole: {self._folder.named(counters.steps)}"
            self._notices.say("saved", sentence, counters.steps)
            if self._writer.best is not None and self._writer.best.steps == counters.steps:
                self._say_best()
        except Exception as error:  # every error is raised again in the training thread
            outcome.set_exception(error)
        else:
            outcome.set_result(None)
