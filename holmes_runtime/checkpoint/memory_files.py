"""Of the newest checkpoint the files that a host has, once more in its memory: ranks started again there read no disk.

They outlive the ranks in a folder of /dev/shm, which the node's agent names and whoever ends the run removes. Each rank
has a part of it, for the files that it wrote or copied. They are the same files: what is missing or damaged here is
read from a disk as if there were no memory.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from holmes_runtime.config.node_config import MEMORY_VARIABLE
from holmes_runtime.config.rank_grid import Rank

MOST_PART = 0.5  # of the memory that is free, for all ranks of a host: NCCL, data and others need some too
MEMORY = Path("/proc/meminfo")


class MemoryFiles:
    """What rank `me` of `ranks` keeps in the folder that `environ` names; nothing where it names none."""

    def __init__(self, me: Rank, ranks: Sequence[Rank], environ: Mapping[str, str]) -> None:
        named = environ.get(MEMORY_VARIABLE, "")
        self._me, self._folder = me, Path(named) if named else None
        self._beside = sorted(each.rank for each in ranks if each.host == me.host)
        self._has_told = False

    def of_save(self, save_id: str) -> dict[str, Path]:
        """By name the files of a save that are here, and the folder that each is in."""
        if self._folder is None or not save_id or not _is_own(self._folder):
            return {}
        return {found.name: found.parent for found in self._folder.glob(f"*/{save_id}/*")}

    def keep(self, save_id: str, checkpoint: Path, names: Iterable[str]) -> None:
        """Puts the files of the folder `checkpoint` here, in place of those of the save before.

        What keeps it from that is said once and harms nothing: disks have them.
        """
        if self._folder is None:
            return
        mine = self._folder / str(self._me.rank)
        try:
            shutil.rmtree(mine, ignore_errors=True)
            self._make_folder(self._folder)
            paths = [checkpoint / name for name in names]
            self._require_room(self._folder, sum(path.stat().st_size for path in paths))
            coming = mine / "coming"
            coming.mkdir(mode=0o700, parents=True)
            for path in paths:
                shutil.copyfile(path, coming / path.name)
            coming.rename(mine / save_id)
        except OSError as error:
            shutil.rmtree(mine, ignore_errors=True)
            if not self._has_told:
                print(f"host {self._me.host}: the newest checkpoint is not kept in memory: {error}", flush=True)
            self._has_told = True

    def _make_folder(self, folder: Path) -> None:
        """Makes it, private, unless another rank has; without the parts of ranks that are here no more."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_own(folder):
            raise OSError(f"{folder} is another user's, or others may enter it")
        if self._me.rank == self._beside[0]:
            for part in folder.iterdir():
                if part.name not in map(str, self._beside):
                    shutil.rmtree(part, ignore_errors=True)

    def _require_room(self, folder: Path, size_bytes: int) -> None:
        """Raises OSError if the ranks of this host, each with as much, would leave others too little."""
        free_bytes = min(shutil.disk_usage(folder).free, _available_bytes())
        wanted_bytes = size_bytes * len(self._beside)
        if wanted_bytes > MOST_PART * free_bytes:
            ranks = f"{len(self._beside)} ranks want {wanted_bytes / 1e9:.1f} GB"
            raise OSError(f"{ranks}, of {free_bytes / 1e9:.1f} GB that are free they may take half")

    def remove(self) -> None:
        """Removes all that ranks of this host keep; called by all of them once none needs it any more."""
        if self._folder is not None and self._me.rank == self._beside[0] and _is_own(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """Whether it is a folder of this user that nobody else can enter."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _available_bytes() -> int:
    """Memory that processes may still take; without limit where the system does not say."""
    try:
        lines = MEMORY.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 1 << 62
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 1 << 62)
