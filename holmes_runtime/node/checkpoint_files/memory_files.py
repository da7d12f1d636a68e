"""The files of the newest checkpoint, kept in host memory so that restarted ranks need not read the disk.

They outlive the ranks in a folder of /dev/shm that the node's agent names. The process that ends the run removes it.
Each rank has a part of it, for the files that it wrote or copied. They equal the files on disk: if one is missing or
damaged here, it is read from a disk instead.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from holmes_runtime.config.node_config import MEMORY_VARIABLE, SHM_BYTES_PER_RANK
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.node.checkpoint_files.checkpoint_names import PieceName, SaveId
from holmes_runtime.node.checkpoint_files.plain_file import open_plain
from holmes_runtime.node.private_folder import is_private_folder

COMING = "coming"  # the name of a save until it has all its files
MAX_PART = 0.5  # of the free memory, for all ranks of a host together: NCCL, data and others need some too
MEMORY = Path("/proc/meminfo")
OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
UNLIMITED = 1 << 62
COPY_BYTES = 1 << 18  # at a time, so that they are still in a cache when written


class MemoryFiles:
    """The files that rank `me` of `ranks` keeps in the folder that `environ` names; none if it names none."""

    def __init__(self, me: Rank, ranks: Sequence[Rank], environ: Mapping[str, str]) -> None:
        named = environ.get(MEMORY_VARIABLE, "")
        self._me, self._folder = me, Path(named) if named else None
        self._local_ranks = sorted(each.rank for each in ranks if each.host == me.host)
        self._has_warned = False

    def of_save(self, save_id: SaveId) -> dict[str, Path]:
        """Return the files of a save that are here, each with its folder, by name."""
        if self._folder is None or not is_private_folder(self._folder):
            return {}
        return {found.name: found.parent for found in self._folder.glob(f"*/{save_id}/*")}

    def keep(self, save_id: SaveId, checkpoint: Path, names: Iterable[PieceName]) -> None:
        """Replace the files of the previous save by those in the folder `checkpoint`.

        A failure is printed once and does no harm, as the disks have the files.
        """
        if self._folder is None:
            return
        try:
            self._make_folder(self._folder)
            self._put(self._folder / str(self._me.rank), save_id, [checkpoint / name for name in names])
        except OSError as error:
            if not self._has_warned:
                print(f"host {self._me.host}: the newest checkpoint is not kept in memory: {error}", flush=True)
            self._has_warned = True

    def _put(self, mine: Path, save_id: SaveId, paths: Sequence[Path]) -> None:
        """Replace the files of this rank's part by `paths`, in the same memory. Keep none if they do not fit."""
        coming = mine / COMING
        try:
            self._require_room(mine.parent, sum(path.stat().st_size for path in paths))
            mine.mkdir(mode=0o700, exist_ok=True)
            for before in mine.iterdir():
                before.rename(coming)  # from now on it no longer counts as a save
            coming.mkdir(mode=0o700, exist_ok=True)
            for path in {*coming.iterdir()} - {coming / path.name for path in paths}:
                path.unlink()
            for path in paths:
                _overwrite(coming / path.name, path)
            coming.rename(mine / save_id)
        except OSError:
            shutil.rmtree(mine, ignore_errors=True)
            raise

    def _make_folder(self, folder: Path) -> None:
        """Create the private folder unless another rank has. Remove the parts of ranks that no longer run here."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if not is_private_folder(folder):
            raise OSError(f"{folder} is another user's, or others may enter it")
        if self._me.rank == self._local_ranks[0]:
            for part in folder.iterdir():
                if part.name not in map(str, self._local_ranks):
                    shutil.rmtree(part, ignore_errors=True)

    def _require_room(self, folder: Path, size_bytes: int) -> None:
        """Raise OSError if the ranks of this host, each keeping as much, would leave too little for others."""
        beside_nccl_bytes = shutil.disk_usage(folder).free - SHM_BYTES_PER_RANK * len(self._local_ranks)
        free_bytes = min(beside_nccl_bytes, available_bytes()) + _bytes_in(folder)
        wanted_bytes = size_bytes * len(self._local_ranks)
        if wanted_bytes > MAX_PART * free_bytes:
            ranks = f"{len(self._local_ranks)} ranks want {wanted_bytes / 1e9:.1f} GB"
            raise OSError(f"{ranks}, but may take only half of {free_bytes / 1e9:.1f} GB of free memory")

    def remove(self) -> None:
        """Remove all files that ranks of this host keep. All of them call this once none needs the files any more."""
        if self._folder is not None and self._me.rank == self._local_ranks[0] and is_private_folder(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)


def _overwrite(path: Path, source: Path) -> None:
    """Make `path` a copy of `source` in the memory it already has. Freeing and allocating again would cost more."""
    path.touch(mode=0o600)
    with open_plain(source) as given, open(path, "r+b", buffering=0) as taken:
        shutil.copyfileobj(given, taken, COPY_BYTES)
        taken.truncate()


def _bytes_in(folder: Path) -> int:
    """Return the bytes that ranks keep there now. Another rank may be removing some of them."""
    size_bytes = 0
    for path in folder.glob("*/*/*"):
        with contextlib.suppress(FileNotFoundError):
            size_bytes += path.stat().st_size
    return size_bytes


def available_bytes() -> int:
    """Return the memory that this process can still take, limited by its host and its control groups."""
    return min(_available_on_host(), *_left_by_groups(), UNLIMITED)


def _available_on_host() -> int:
    try:
        lines = MEMORY.read_text(encoding="utf-8").splitlines()
    except OSError:
        return UNLIMITED
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), UNLIMITED)


def _left_by_groups() -> Iterator[int]:
    """Yield the bytes left in each memory-limiting control group around this process. Exceeding one kills the process.

    Cached files give way; files in /dev/shm do not. Versions 2 and 1, as documented by Linux in
    admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
    """
    with contextlib.suppress(OSError):
        for line in OWN_GROUPS.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _left_above(GROUPS, path, "memory.max", ("anon", "shmem"))
            elif "memory" in controllers.split(","):
                yield from _left_above(GROUPS / "memory", path, "memory.limit_in_bytes", ("total_rss", "total_shmem"))


def _left_above(root: Path, path: str, limit_file: str, taken: tuple[str, str]) -> Iterator[int]:
    """Yield the bytes left in the group at `path` and those above: its limit less the kinds `taken` in memory.stat."""
    group = root / path.strip("/")
    for folder in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):  # no such file, or `max`
            limit_bytes = int((folder / limit_file).read_text(encoding="utf-8"))
            lines = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
            used = dict(line.split(" ", 1) for line in lines)
            yield limit_bytes - sum(int(used.get(kind, 0)) for kind in taken)
        if folder == root:
            return
