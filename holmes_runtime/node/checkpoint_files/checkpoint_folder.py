"""The folder of a run's checkpoints. A checkpoint gets its name only when it is complete, so a kill spoils none.

It holds `latest` (the name of the newest checkpoint), `step-00000100` for the state after 100 steps, and, while one is
being written, `step-00000200.partial`. Without its `latest` file, a folder still holds its checkpoints. Only the first
rank that sees a folder changes names in it. The node agent looks for the newest checkpoint before torch is loaded, so
this module imports only what loads quickly.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Container
from io import BufferedWriter
from pathlib import Path
from typing import NamedTuple

from holmes_runtime.node.checkpoint_files.checkpoint_names import CheckpointName
from holmes_runtime.node.checkpoint_files.plain_file import create_plain, read_plain

LATEST_FILE = "latest"
MAX_LATEST_BYTES = 256
PARTIAL = ".partial"
ASIDE = ".aside-"  # followed by a number: a checkpoint later than the one a run went back to
SEEN = "seen-"  # prefix of the files that show which hosts share a folder


class CheckpointFolder(NamedTuple):
    """The folder `path`, which keeps the newest `keep_last` checkpoints and the best one by validation loss."""

    path: Path
    keep_last: int

    def make_ready(self) -> None:
        """Create the folder if it is missing, and remove what a kill left half written."""
        self.path.mkdir(parents=True, exist_ok=True)
        for stray in self.path.glob(f"*{PARTIAL}"):
            shutil.rmtree(stray, ignore_errors=True)
        for stray in self.path.glob(f"{SEEN}*"):
            stray.unlink(missing_ok=True)

    def partial(self, steps: int) -> Path:
        """Return the path at which the checkpoint after `steps` is being written."""
        return self.path / f"{CheckpointName.after(steps)}{PARTIAL}"

    def named(self, steps: int) -> Path:
        """Return the path of the checkpoint after `steps` once it is complete."""
        return self.path / CheckpointName.after(steps)

    def publish(self, steps: int) -> None:
        """Give the checkpoint after `steps` its name, once all its files are written, and point `latest` to it."""
        final = self.named(steps)
        if final.exists():
            _remove(final)
        self.partial(steps).rename(final)
        self._point_to(final.name)
        _sync_folder(self.path)

    def go_back(self, steps: int) -> None:
        """Make the newest checkpoint up to `steps` the newest of all. Later ones get names that no reader looks for."""
        names = names_in(self.path)
        older = [name for name in names if name.steps <= steps]
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

    def remove_old(self, steps: int, spared: Container[int] = ()) -> None:
        """Remove all but the `spared` steps and the newest checkpoints up to the one after `steps`, which all have."""
        older = [name for name in names_in(self.path) if name.steps <= steps]
        for name in older[: -self.keep_last]:
            if name.steps not in spared:
                _remove(self.path / name)


def names_in(folder: Path) -> list[CheckpointName]:
    """Return the names of the checkpoints in `folder`, by ascending steps."""
    names = []
    for path in folder.glob("step-*"):
        with contextlib.suppress(ValueError):
            names.append(CheckpointName(path.name))
    return sorted(names, key=lambda name: name.steps)


def newest_in(folder: Path) -> Path | None:
    """Return the newest checkpoint in `folder`, None without one: by `latest`, or by steps if that file is missing.

    Raises:
        OSError: `latest` cannot be read.
        ValueError: `latest` does not name a checkpoint.
    """
    latest = folder / LATEST_FILE
    try:
        text = read_plain(latest, MAX_LATEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return folder / names[-1] if (names := names_in(folder)) else None
    try:
        return folder / CheckpointName(text.decode().strip())
    except ValueError as error:
        raise ValueError(f"{latest} does not name a checkpoint: it {error}") from None


def steps_of(checkpoint: Path) -> int:
    """Return the steps in the name of a checkpoint. Raises ValueError for any other name."""
    return CheckpointName(checkpoint.name).steps


def write_durably(path: Path, text: str) -> None:
    """Write `text` to a new file that replaces `path`, and wait until it is on the disk."""
    path.unlink(missing_ok=True)
    with BufferedWriter(create_plain(path)) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove a checkpoint. A kill halfway leaves nothing that looks like one."""
    condemned = folder.with_name(f"{folder.name}.old{PARTIAL}")
    folder.rename(condemned)
    shutil.rmtree(condemned, ignore_errors=True)
