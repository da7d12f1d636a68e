"""The folder of a run's checkpoints. A checkpoint has its name only when it is whole, so a kill spoils none.

It holds `latest` (the name of the newest checkpoint), `step-00000100` for the state after 100 steps, and while one is
written `step-00000200.partial`. The first rank that sees the folder alone changes names here. The node agent looks for
the newest before torch is up, so this imports only what is quick to import.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

LATEST_FILE = "latest"
PARTIAL = ".partial"
ASIDE = ".aside-"  # and a number: of a checkpoint later than the one that a run has gone back to
SEEN = "seen-"  # files by which hosts find out which of them share a folder begin so


class CheckpointFolder(NamedTuple):
    """The folder `path`, in which the newest `keep_last` checkpoints are kept."""

    path: Path
    keep_last: int

    def make_ready(self) -> None:
        """Makes the folder if it is missing, and removes what a kill left half written."""
        self.path.mkdir(parents=True, exist_ok=True)
        for stray in self.path.glob(f"*{PARTIAL}"):
            shutil.rmtree(stray, ignore_errors=True)
        for stray in self.path.glob(f"{SEEN}*"):
            stray.unlink(missing_ok=True)

    def partial(self, steps: int) -> Path:
        """Where the checkpoint after `steps` is written."""
        return self.path / f"{_name(steps)}{PARTIAL}"

    def publish(self, steps: int) -> None:
        """Gives the checkpoint after `steps`, all files of which are written, its name, and points `latest` to it."""
        final = self.path / _name(steps)
        if final.exists():
            _remove(final)
        self.partial(steps).rename(final)
        self._point_to(final.name)
        _sync_folder(self.path)

    def go_back(self, steps: int) -> None:
        """Makes the newest up to the one after `steps` the newest of all: later ones get names that nobody reads."""
        names = sorted(path.name for path in self.path.glob("step-*") if not path.suffix)
        older = [name for name in names if name <= _name(steps)]
        if older:
            self._point_to(older[-1])
        else:
            (self.path / LATEST_FILE).unlink(missing_ok=True)
        for name in names[len(older) :]:
            number = 1 + len(list(self.path.glob(f"{name}{ASIDE}*")))
            (self.path / name).rename(self.path / f"{name}{ASIDE}{number}")
        _sync_folder(self.path)

    def _point_to(self, name: str) -> None:
        pointer = self.path / f"{LATEST_FILE}{PARTIAL}"
        write_durably(pointer, name + "\n")
        pointer.replace(self.path / LATEST_FILE)

    def remove_old(self, steps: int) -> None:
        """Keeps the newest up to the one after `steps`, once all folders have that one."""
        older = sorted(path for path in self.path.glob("step-*") if path.name <= _name(steps) and not path.suffix)
        for path in older[: -self.keep_last]:
            _remove(path)


def newest_in(folder: Path) -> Path | None:
    """The newest whole checkpoint in `folder`; None if there is none."""
    latest = folder / LATEST_FILE
    return folder / latest.read_text(encoding="utf-8").strip() if latest.is_file() else None


def before(checkpoint: Path) -> Path | None:
    """The newest whole checkpoint older than `checkpoint` beside it; None if there is none."""
    beside = (path for path in checkpoint.parent.glob("step-*") if path.name < checkpoint.name and not path.suffix)
    return max(beside, default=None)


def steps_of(checkpoint: Path) -> int:
    """The steps that the name of a checkpoint tells. Raises ValueError for another name."""
    return int(checkpoint.name.removeprefix("step-"))


def _name(steps: int) -> str:
    return f"step-{steps:08d}"


def write_durably(path: Path, text: str) -> None:
    """Writes `text` and waits until it is on the disk."""
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
