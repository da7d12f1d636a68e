"""Saved states of a run: written in the background, whole or not at all, and loadable under any other plan.

A checkpoint is a folder with the tensors as torch.distributed.checkpoint stores them, checkpoint.json and pieces.json.
Each tensor is saved whole, under its name in the whole model, as fp32: `weight/NAME`, `exp_avg/NAME` and
`exp_avg_sq/NAME`. So a checkpoint knows nothing of the plan that wrote it. Where hosts have folders of their own, each
holds the files of its ranks and copies of others', and all together hold the checkpoint.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

from holmes_runtime.checkpoint.checkpoint_folder import LATEST_FILE, CheckpointFolder, before, write_durably
from holmes_runtime.checkpoint.description import DESCRIPTION_FILE, Counters, Description, describe, differences
from holmes_runtime.checkpoint.host_folders import Said, find_folders
from holmes_runtime.checkpoint.piece_copies import copy_files
from holmes_runtime.checkpoint.piece_files import (
    files_of,
    index_of_old,
    joined_boxes,
    write_metadata,
    write_pieces,
)
from holmes_runtime.checkpoint.piece_index import (
    INDEX_FILE,
    INDEX_VERSION,
    DamagedPiece,
    Described,
    Merged,
    PieceIndex,
    Written,
    WrittenTensor,
    digest_of,
    index_text,
    read_index,
)
from holmes_runtime.checkpoint.piece_loading import PieceLoading
from holmes_runtime.checkpoint.piece_transfer import Pace
from holmes_runtime.checkpoint.reshard import TensorPiece, pieces_of
from holmes_runtime.checkpoint.snapshot import Snapshot
from holmes_runtime.checkpoint.whole_checkpoints import Found, Offers, found_in, offers_in, read_description
from holmes_runtime.comm.group_opening import new_control_group
from holmes_runtime.comm.record_exchange import all_gather_records, broadcast_record, gather_records
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.parallel.gradient_buckets import Shard

NOTHING: Mapping[str, TensorPiece] = {}
SPREAD = 0.5  # of the time between two saves, over which copies are sent, so that training has the network as well


class Checkpoints:
    """The checkpoints of one run, as one of its ranks sees them.

    Every method but `check` is called by all ranks. Saving happens in a thread, on a process group of its own: what a
    step would have to wait for is a copy of the rank's state in host memory.
    """

    def __init__(self, config: RunConfig, me: Rank, data_digest: str) -> None:
        """Raises RuntimeError if a host cannot write, or if folders hold a run that this one does not resume."""
        assert config.checkpoint is not None
        self._config, self._me, self._data_digest = config, me, data_digest
        self._folder = CheckpointFolder(Path(config.checkpoint.path), config.checkpoint.keep_last)
        self._group = new_control_group(config.timeout_s)
        self._saving: Future[None] | None = None
        self._snapshot = Snapshot()
        self._every_steps, self._copies = config.checkpoint.every_steps, config.checkpoint.copies
        self._has_too_few = False  # copies of what it went on from
        self._pace, self._saved_s = Pace(0.0), time.monotonic()
        self._folders = find_folders(self._folder.path, me, config.ranks, self._group)
        self._own = self._folders.number(me.rank)
        self._is_first = self._folders.ranks_at(self._own)[0] == me.rank
        self._copied_to = self._folders.copied_to(self._copies)
        if self._is_first:
            self._folder.make_ready()
        self._offers = self._all_offers()
        self._found = found_in(self._offers)
        self._faults = [fault for each in self._offers for fault in each.faults]
        self._generation = 1 + max((offer.generation for each in self._offers for offer in each.offers), default=0)
        self._begun_by = config.run_id
        if not self.is_empty and not config.resume:
            holder = next(each for each in self._offers if each.latest is not None)
            raise RuntimeError(
                f"{self._place(holder)} holds a checkpoint, {holder.latest}, and this run does not resume: "
                "resume it, or set another `checkpoint.path`"
            )

    def _all_offers(self) -> list[Offers]:
        """What each folder holds, in their order."""
        path = self._folder.path
        mine = offers_in(self._me.host, path, index_of_old) if self._is_first else Offers("", "", None, (), ())
        by_rank = all_gather_records(mine, self._group)
        return [by_rank[self._folders.ranks_at(number)[0]] for number in range(len(self._folders.hosts))]

    def _place(self, folder: Offers) -> str:
        """Host and path; of the one folder of all hosts the path."""
        return f"host {folder.host}: {folder.path}" if len(self._offers) > 1 else folder.path

    @property
    def is_empty(self) -> bool:
        """Whether there was none to go on from when this was made: the run starts from the beginning."""
        return all(each.latest is None for each in self._offers)

    def is_due(self, steps: int) -> bool:
        """Whether the state after `steps` is to be saved: also at once where a host lost now would lose the run."""
        return steps % self._every_steps == 0 or self._has_too_few

    def load(self, shards: Iterable[Shard], more: Mapping[str, TensorPiece] = NOTHING) -> Counters | None:
        """Reads the newest whole checkpoint into `shards`; None, and nothing done, if there is none at all.

        What it never had of `more` stays as it is.

        What is missing in a rank's folder comes from peers. Of folders apart an older checkpoint is taken where none
        has a whole newer one, and that is told; in one folder of all hosts it is the user who decides. Raises
        RuntimeError naming the checkpoint, host and file if it is of another model or cannot be read.
        """
        if self.is_empty:
            return None
        self._tell(self._faults)
        pieces, reasons = pieces_of(shards), list(self._faults)
        for found in self._candidates():
            counters, fault = self._load(found, pieces, more)
            if fault is None:
                self._begun_by = found.offer.begun_by or self._config.run_id
                self._has_too_few = any(len(at) < min(self._copies, len(self._offers)) for at in found.holders.values())
                return counters
            reasons.append(f"{found.offer.name}: {fault}")
            if len(self._offers) > 1:
                self._tell([f"checkpoint {found.offer.name} cannot be read and is left out: {fault}"])
        raise RuntimeError(self._unreadable(reasons))

    def _candidates(self) -> list[Found]:
        """The newest first; of one folder what its `latest` names."""
        if len(self._offers) > 1:
            return self._found
        return [found for found in self._found if found.offer.name == self._offers[0].latest]

    def _unreadable(self, reasons: list[str]) -> str:
        if len(self._offers) > 1:
            hosts = ", ".join(host for hosts in self._folders.hosts for host in hosts)
            return f"the folders {self._folder.path} of {hosts} hold no checkpoint that is whole: {'; '.join(reasons)}"
        folder = self._folder.path / str(self._offers[0].latest)
        older = before(folder)
        instead = f"; to go on from {older.name}, write that into {folder.parent}/{LATEST_FILE}" if older else ""
        return f"checkpoint {folder} cannot be read: {'; '.join(reasons)}{instead}"

    def _load(
        self, found: Found, pieces: dict[str, TensorPiece], more: Mapping[str, TensorPiece]
    ) -> tuple[Counters | None, str | None]:
        """Reads one checkpoint; or why that cannot be done, the same on all ranks."""
        if not found.is_whole:
            return None, "; ".join(found.lacking)
        folder = self._folder.path / found.offer.name
        described = self._described(folder, found)
        if described.pieces is None:
            return None, described.fault
        saved = Description.parse(described.description, folder / DESCRIPTION_FILE)
        wanted = describe(self._config, self._data_digest, saved.counters)
        wrong = differences(saved.shape, wanted.shape)
        if wrong:
            raise RuntimeError(f"checkpoint {folder} is of another model: {'; '.join(wrong)}")
        changed = differences(saved.trained_with, wanted.trained_with)
        if changed:
            self._tell([f"resumes {folder} with other settings: {'; '.join(changed)}"])
        places = [f"{self._place(each)}/{found.offer.name}" for each in self._offers]
        there = {tensor.name for tensor in described.pieces.tensors}
        pieces = {**pieces, **{name: piece for name, piece in more.items() if name in there}}
        loading = PieceLoading(described.pieces, pieces, folder, found.holders, places, self._folders, self._me)
        fault, damage = loading.load(self._group)
        if fault is None:
            self._tell(f"{sentence}: read from another folder" for sentence in (*found.lost, *damage))
        return saved.counters, fault

    def _described(self, folder: Path, found: Found) -> Described:
        """What the first folder that has it says of a checkpoint."""
        source = self._folders.ranks_at(found.folders[0])[0]
        mine = Described(None, "", None)
        if self._me.rank == source:
            try:
                index = read_index(folder) or index_of_old(folder)
                mine = Described(index, read_description(folder, index), None)
            except DamagedPiece as error:
                mine = Described(None, "", f"host {self._me.host}: {error}")
        return broadcast_record(mine, self._group, source)

    def _tell(self, sentences: Iterable[str]) -> None:
        """What all ranks know, said once."""
        if self._me.rank == 0:
            for sentence in sentences:
                print(sentence, flush=True)

    def save(self, shards: Iterable[Shard], counters: Counters, more: Mapping[str, TensorPiece] = NOTHING) -> None:
        """Copies the state, always to the same memory, and starts to write it; waits until the write before it is done.

        Of `more` every piece is saved once: no two ranks have the same.

        Raises RuntimeError if the write before it failed.
        """
        self.finish()
        is_first = self._me.tp_rank == 0
        mine = [shard for shard in shards if (is_first or not shard.part.is_whole) and not shard.is_copy]
        copies = self._snapshot.take({**pieces_of(mine), **more})
        self._saving, self._has_too_few = Future(), False
        now_s = time.monotonic()
        self._pace, self._saved_s = Pace(SPREAD * (now_s - self._saved_s)), now_s
        # A daemon: when the run fails elsewhere, nobody waits for a write that waits for ranks that are gone.
        Thread(target=self._run, args=(self._saving, copies, counters), name="checkpoint", daemon=True).start()

    def check(self) -> None:
        """Raises RuntimeError if a write that was started has failed; waits for nothing."""
        if self._saving is not None and self._saving.done():
            self._saving.result()

    def finish(self) -> None:
        """Waits for the write that was started, if any. Raises RuntimeError if it failed."""
        self._pace.hurry()
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
        """Each step is taken only once all ranks have done the one before; old checkpoints go last."""
        partial = self._folder.partial(counters.steps)
        merged = self._merge(self._write_own(partial, pieces), counters)
        trouble = merged.trouble
        if trouble is None and len(self._offers) > 1:  # in one folder of all hosts rank 0 alone knows the pieces
            assert merged.pieces is not None
            copied = copy_files(partial, merged.pieces, self._me.rank, self._copied_to, self._group, self._pace)
            trouble = self._troubles(copied)
        if trouble is None:
            trouble = self._troubles(self._publish(partial, merged.pieces, counters))
        if trouble is not None:
            raise RuntimeError(
                f"the checkpoint after {counters.steps} steps could not be written to {partial}; "
                f"those before it are whole: {trouble}"
            )
        if self._is_first:
            self._folder.remove_old(counters.steps)

    def _write_own(self, partial: Path, pieces: dict[str, TensorPiece]) -> Written:
        try:
            return Written(write_pieces(partial, pieces, self._me.rank), None)
        except Exception as error:  # torch's writer raises many kinds; all ranks hear of it
            return Written((), self._in_words(error))

    def _in_words(self, error: Exception) -> str:
        """What went wrong here, and how much is free."""
        path, free = self._folder.path, "none"
        with contextlib.suppress(OSError):
            free = f"{shutil.disk_usage(path).free / 1e6:.0f} MB"
        return f"host {self._me.host}, rank {self._me.rank}: {error!r} ({free} free in {path})"

    def _troubles(self, mine: Exception | None) -> str | None:
        """What went wrong on any rank, in words; None if nothing did."""
        said = all_gather_records(Said(None if mine is None else self._in_words(mine)), self._group)
        return _joined(each.text for each in said)

    def _merge(self, mine: Written, counters: Counters) -> Merged:
        """What all ranks wrote, as rank 0 puts it together, and those who publish need it."""
        all_written = gather_records(mine, self._group)
        trouble = _joined(written.trouble for written in all_written)
        index = None
        if self._me.rank == 0 and trouble is None:
            try:
                index = self._index([tensor for written in all_written for tensor in written.tensors], counters)
            except Exception as error:  # whatever it is, the others wait to hear of it
                trouble = self._in_words(error)
        merged = broadcast_record(Merged(index if len(self._offers) > 1 else None, trouble), self._group)
        return merged._replace(pieces=merged.pieces or index)

    def _index(self, tensors: Iterable[WrittenTensor], counters: Counters) -> PieceIndex:
        """Of what all ranks wrote."""
        hosts = {
            rank.rank: tuple(
                host
                for at in (rank.rank, *self._copied_to[rank.rank])
                for host in self._folders.hosts[self._folders.number(at)]
            )
            for rank in self._config.ranks
        }
        together = joined_boxes(tensors)
        said = (INDEX_VERSION, uuid.uuid4().hex, self._begun_by, self._generation, counters.steps)
        text = describe(self._config, self._data_digest, counters).to_json()
        return PieceIndex(*said, digest_of(text.encode()), files_of(together, hosts), together)

    def _publish(self, partial: Path, index: PieceIndex | None, counters: Counters) -> Exception | None:
        """The first rank of a folder gives the checkpoint there its name; what went wrong, if anything."""
        if not self._is_first:
            return None
        try:
            assert index is not None
            write_metadata(partial, index.tensors)
            description = describe(self._config, self._data_digest, counters)
            write_durably(partial / DESCRIPTION_FILE, description.to_json())
            write_durably(partial / INDEX_FILE, index_text(index))
            self._folder.publish(counters.steps)
        except Exception as error:  # whatever it is, the others wait to hear of it
            return error
        return None


def _joined(said: Iterable[str | None]) -> str | None:
    """What all that failed say; None if none did."""
    return "; ".join(each for each in said if each is not None) or None
