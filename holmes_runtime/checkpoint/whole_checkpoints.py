"""Which checkpoints there are in several folders together, and which of them is the newest whole one. Free of torch.

Nothing is compared by time: of two checkpoints of a run the one saved by a later start is newer, and of one start the
one with more steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from holmes_runtime.checkpoint.checkpoint_folder import LATEST_FILE, names_in, newest_in
from holmes_runtime.checkpoint.description import DESCRIPTION_FILE
from holmes_runtime.checkpoint.piece_index import DamagedPiece, PieceFile, PieceIndex, digest_of, lacks, read_index

ReadOld = Callable[[Path], PieceIndex]


class Offer(NamedTuple):
    """A checkpoint of which one folder holds the files `held`; `lacking` says of each other one why not."""

    name: str
    save_id: str
    begun_by: str
    generation: int
    steps: int
    files: tuple[PieceFile, ...]
    held: tuple[str, ...]
    lacking: dict[str, str]


class Offers(NamedTuple):
    """What one folder, which `host` sees at `path`, holds.

    `latest`: the newest checkpoint, by the file of that name. `faults`: sentences on what is no checkpoint any more.
    """

    host: str
    path: str
    latest: str | None
    offers: tuple[Offer, ...]
    faults: tuple[str, ...]


class Found(NamedTuple):
    """A checkpoint, its files in any of the folders. `holders`: by file the numbers of those that hold it."""

    offer: Offer
    folders: tuple[int, ...]
    holders: dict[str, tuple[int, ...]]
    lacking: tuple[str, ...]  # a sentence a file that no folder holds
    lost: tuple[str, ...]  # a sentence a folder that no longer holds what was put into it, and a file of others

    @property
    def is_whole(self) -> bool:
        """Whether each of its files is in some folder, as far as sizes tell."""
        return not self.lacking


class OtherRun(RuntimeError):
    """Folders hold checkpoints of different runs, and nothing says which is meant; the text names them."""


def offers_in(host: str, folder: Path, read_old: ReadOld) -> Offers:
    """The checkpoints of a folder up to the newest. `read_old` gives the index of one that has none.

    `read_old` raises DamagedPiece for what it cannot read.
    """
    newest = newest_in(folder)
    if newest is None:
        return Offers(host, str(folder), None, (), ())
    offers, faults = [], []
    names = {name for name in names_in(folder) if name <= newest.name}
    for name in sorted(names | {newest.name}):
        try:
            offers.append(_offer(folder / name, read_old))
        except DamagedPiece as error:
            faults.append(f"host {host}: {error}")
    return Offers(host, str(folder), newest.name, tuple(offers), tuple(faults))


def _offer(checkpoint: Path, read_old: ReadOld) -> Offer:
    if not checkpoint.is_dir():
        raise DamagedPiece(f"{checkpoint}, which {LATEST_FILE} there names, is missing")
    index = read_index(checkpoint) or read_old(checkpoint)
    read_description(checkpoint, index)
    lacking = {file.name: fault for file in index.files if (fault := lacks(checkpoint, file)) is not None}
    held = tuple(file.name for file in index.files if file.name not in lacking)
    said = (checkpoint.name, index.save_id, index.begun_by, index.generation, index.steps)
    return Offer(*said, index.files, held, lacking)


def read_description(checkpoint: Path, index: PieceIndex) -> str:
    """The text of checkpoint.json. Raises DamagedPiece if it is not what was written."""
    path = checkpoint / DESCRIPTION_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DamagedPiece(f"{path} cannot be read: {error}") from None
    if index.description_digest and digest_of(text.encode()) != index.description_digest:
        raise DamagedPiece(f"{path} is not as it was written: its digest is another")
    return text


def found_in(folders: Sequence[Offers]) -> list[Found]:
    """The checkpoints in all folders together, the newest first. Raises OtherRun where they are of several runs."""
    runs: dict[str, Offers] = {}
    for each in folders:
        for offer in each.offers:
            if offer.begun_by:  # else it may be of any
                runs.setdefault(offer.begun_by, each)
    if len(runs) > 1:
        named = "; ".join(f"host {each.host}: {each.path} of run {run}" for run, each in runs.items())
        raise OtherRun(f"checkpoints of different runs: {named}; empty the folders that are not wanted")
    saves: dict[str, list[tuple[int, Offer]]] = {}
    for number, each in enumerate(folders):
        for offer in each.offers:
            saves.setdefault(offer.save_id, []).append((number, offer))
    found = [_found(folders, held) for held in saves.values()]
    return sorted(found, key=lambda each: _age(each.offer), reverse=True)


def _found(folders: Sequence[Offers], held: Sequence[tuple[int, Offer]]) -> Found:
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
    return Found(offer, tuple(at for at, _ in held), holders, tuple(lacking), tuple(lost))


def _age(offer: Offer) -> tuple[int, int, str]:
    return offer.generation, offer.steps, offer.save_id
