"""The checkpoints that several folders hold together, and the newest complete one. Free of torch.

Times are not compared. A checkpoint saved by a later start of the run is newer; within one start, the one with more
steps is newer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from holmes_runtime.config.checks import check, check_counts
from holmes_runtime.node.checkpoint_files.checkpoint_folder import LATEST_FILE, names_in, newest_in
from holmes_runtime.node.checkpoint_files.checkpoint_names import CheckpointName, PieceName, SaveId
from holmes_runtime.node.checkpoint_files.description import (
    DESCRIPTION_FILE,
    MAX_DESCRIPTION_BYTES,
    Counters,
    Description,
)
from holmes_runtime.node.checkpoint_files.piece_index import (
    MAX_COUNT,
    DamagedPiece,
    PieceFile,
    PieceIndex,
    digest_of,
    lacks,
    read_index,
)
from holmes_runtime.node.checkpoint_files.plain_file import read_plain


@dataclass(frozen=True)
class FolderCheckpoint:
    """A checkpoint in one folder, which holds the files `held`. `lacking` has the reason for each other file."""

    name: CheckpointName
    save_id: SaveId
    begun_by: str
    generation: int
    steps: int
    files: tuple[PieceFile, ...]
    held: tuple[PieceName, ...]
    lacking: dict[PieceName, str]
    validation_loss: float | None = None  # of its weights; None if not evaluated

    def __post_init__(self) -> None:
        check_counts(self, MAX_COUNT, "generation", "steps")
        check("steps", self.steps, f"must be those that {self.name} names", self.steps == self.name.steps)
        names = sorted(file.name for file in self.files)
        check("held", self.held, "and those lacking must be the files", sorted((*self.held, *self.lacking)) == names)


class Offers(NamedTuple):
    """The checkpoints in one folder, which `host` sees at `path`.

    `latest` is the newest checkpoint by the file of that name. `faults` are sentences about damaged checkpoints.
    """

    host: str
    path: str
    latest: CheckpointName | None
    offers: tuple[FolderCheckpoint, ...]
    faults: tuple[str, ...]


class BestCheckpoint(NamedTuple):
    """The validation loss and the steps of a checkpoint. The best checkpoint is the smallest of these."""

    loss: float
    steps: int


class WholeCheckpoint(NamedTuple):
    """A checkpoint with its files in any of the folders. `holders` are the numbers of each file's folders."""

    offer: FolderCheckpoint
    folders: tuple[int, ...]
    holders: dict[PieceName, tuple[int, ...]]
    lacking: tuple[str, ...]  # a sentence for each file that no folder holds
    lost: tuple[str, ...]  # a sentence for each folder that lost all its files, and for each file lost in the others

    @property
    def is_whole(self) -> bool:
        """True if each of its files is in some folder, judged by size."""
        return not self.lacking

    def has_fewer(self, copies: int) -> bool:
        """Return True if one of its files is in fewer than `copies` folders."""
        return any(len(at) < copies for at in self.holders.values())

    @property
    def validated(self) -> BestCheckpoint | None:
        """The loss after its steps, if the run was evaluated then."""
        loss = self.offer.validation_loss
        return None if loss is None else BestCheckpoint(loss, self.offer.steps)


class OtherRun(RuntimeError):
    """Folders hold checkpoints of different runs, and it is unclear which to use. The text names them."""


def offers_in(host: str, folder: Path) -> Offers:
    """Return the checkpoints in a folder, up to the newest."""
    try:
        path = newest_in(folder)
    except (OSError, ValueError) as error:
        fault = f"host {host}: {error}: remove {LATEST_FILE} there; then the one with the most steps is newest"
        return Offers(host, str(folder), None, (), (fault,))
    if path is None:
        return Offers(host, str(folder), None, (), ())
    offers, faults = [], []
    newest = CheckpointName(path.name)
    names = {name for name in names_in(folder) if name.steps <= newest.steps}
    for name in sorted(names | {newest}, key=lambda name: name.steps):
        try:
            offers.append(_offer(folder, name))
        except DamagedPiece as error:
            faults.append(f"host {host}: {error}")
    return Offers(host, str(folder), newest, tuple(offers), tuple(faults))


def _offer(folder: Path, name: CheckpointName) -> FolderCheckpoint:
    checkpoint = folder / name
    if not checkpoint.is_dir():
        raise DamagedPiece(f"{checkpoint}, which {LATEST_FILE} there names, is missing")
    index = read_index(checkpoint)
    try:
        described = Description.parse(read_description(checkpoint, index), checkpoint / DESCRIPTION_FILE)
    except ValueError as error:
        raise DamagedPiece(str(error)) from None
    lacking = {file.name: fault for file in index.files if (fault := lacks(checkpoint, file)) is not None}
    held = tuple(file.name for file in index.files if file.name not in lacking)
    said = (index.save_id, index.begun_by, index.generation, index.steps)
    try:
        return FolderCheckpoint(name, *said, index.files, held, lacking, described.counters.validation_loss)
    except ValueError as error:
        raise DamagedPiece(f"{checkpoint} is not as it was written: {error}") from None


def read_description(checkpoint: Path, index: PieceIndex) -> str:
    """Return the text of checkpoint.json. Raises DamagedPiece if it is not as it was written."""
    path = checkpoint / DESCRIPTION_FILE
    try:
        text = read_plain(path, MAX_DESCRIPTION_BYTES).decode()
    except (OSError, ValueError) as error:
        raise DamagedPiece(f"{path} cannot be read: {error}") from None
    if digest_of(text.encode()) != index.description_digest:
        raise DamagedPiece(f"{path} is not as it was written: its digest is another")
    return text


def found_in(folders: Sequence[Offers]) -> list[WholeCheckpoint]:
    """Return the checkpoints in all folders together, newest first. Raises OtherRun if they are of several runs."""
    runs: dict[str, Offers] = {}
    for each in folders:
        for offer in each.offers:
            runs.setdefault(offer.begun_by, each)
    if len(runs) > 1:
        named = "; ".join(f"host {each.host}: {each.path} of run {run}" for run, each in runs.items())
        raise OtherRun(f"checkpoints of different runs: {named}; empty the folders that you do not want")
    saves: dict[tuple[SaveId, CheckpointName, tuple[PieceFile, ...]], list[tuple[int, FolderCheckpoint]]] = {}
    for number, each in enumerate(folders):
        for offer in each.offers:  # an offer that describes a save differently counts as another
            saves.setdefault((offer.save_id, offer.name, offer.files), []).append((number, offer))
    found = [_found(folders, held) for held in saves.values()]
    found.sort(key=lambda each: (each.offer.generation, each.offer.steps, each.offer.save_id), reverse=True)
    return found


def best_of(found: Sequence[WholeCheckpoint]) -> BestCheckpoint | None:
    """Return the complete checkpoint with the lowest validation loss, the first of equal ones; None without a loss."""
    return min((best for each in found if each.is_whole and (best := each.validated) is not None), default=None)


def thin_best(found: Sequence[WholeCheckpoint], copies: int) -> str | None:
    """Return a sentence on the best of `found` if one of its files is in fewer than `copies` folders."""
    best = best_of(found)
    thin = [each for each in found if each.is_whole and each.validated == best and each.has_fewer(copies)]
    if best is None or not thin:
        return None
    return (
        f"the best checkpoint, {thin[0].offer.name}, has fewer than {copies} copies, and only new checkpoints are "
        "copied: `holmes checkpoint gather PATH... --best -o FOLDER` makes another"
    )


def before(found: Sequence[WholeCheckpoint], counters: Counters) -> list[WholeCheckpoint]:
    """Return the checkpoints that may be earlier ones of the run with these `counters`.

    After a run goes back, hosts that were away may have others: later ones, and ones with a loss it never had.
    """
    lowest = counters.validated.lowest if counters.validated is not None else None
    return [
        each
        for each in found
        if each.offer.steps <= counters.steps
        and (each.offer.validation_loss is None or lowest is None or each.offer.validation_loss >= lowest)
    ]


def _found(folders: Sequence[Offers], held: Sequence[tuple[int, FolderCheckpoint]]) -> WholeCheckpoint:
    offer = held[0][1]
    holders = {file.name: tuple(at for at, each in held if file.name in each.held) for file in offer.files}
    lacking, at_hosts = [], {host for file in offer.files for host in file.hosts}
    here = {folders[at].host for at, _ in held}
    lost = [
        f"host {folder.host}: {folder.path} holds nothing of {offer.name}"
        for folder in folders
        if folder.host in at_hosts - here
    ]
    lost += [
        f"host {folders[at].host}: {each.lacking[file.name]}"
        for at, each in held
        for file in offer.files
        if file.name in each.lacking and folders[at].host in file.hosts
    ]
    for file in offer.files:
        if not holders[file.name]:
            seen = [f"host {folders[at].host}: {each.lacking[file.name]}" for at, each in held]
            elsewhere = [f"it was also on {host}" for host in file.hosts if host not in here]
            lacking.append("; ".join([*seen, *elsewhere]))
    return WholeCheckpoint(offer, tuple(at for at, _ in held), holders, tuple(lacking), tuple(lost))
