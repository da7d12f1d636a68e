"""The hosts that share a folder at the checkpoint path, and the hosts that get copies of each rank's files."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch.distributed import ProcessGroup

from holmes_runtime.comm.record_exchange import all_gather_records, broadcast_record
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.node.checkpoint_files.checkpoint_folder import SEEN
from holmes_runtime.node.checkpoint_files.checkpoint_names import SaveId
from holmes_runtime.node.checkpoint_files.mounts import mount_of
from holmes_runtime.node.checkpoint_files.plain_file import create_plain

SEEN_WITHIN_S = 10.0  # time a network file system may take to show a host what another wrote
LOCAL_FILE_SYSTEMS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "bcachefs"}


class FolderMark(NamedTuple):
    """The random prefix of the files with which hosts look for shared folders."""

    word: SaveId


class OptionalText(NamedTuple):
    """A text, or None."""

    text: str | None


class VisibleFiles(NamedTuple):
    """The ranks whose files a rank sees in its folder. Each is the first rank of its host."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class HostFolders:
    """All folders, as tuples of the hosts that see each. `ranks` are all ranks of the run."""

    hosts: tuple[tuple[str, ...], ...]
    ranks: tuple[Rank, ...]

    def number(self, rank: int) -> int:
        """Return the number of the folder that `rank` sees."""
        host = next(each.host for each in self.ranks if each.rank == rank)
        return next(number for number, hosts in enumerate(self.hosts) if host in hosts)

    def ranks_at(self, number: int) -> list[int]:
        """Return the ranks that see a folder, in order. Only the first of them changes names in it."""
        return sorted(each.rank for each in self.ranks if each.host in self.hosts[number])

    def is_first(self, rank: int) -> bool:
        """Return True if `rank` is the first rank that sees its folder."""
        return self.ranks_at(self.number(rank))[0] == rank

    def clusters_at(self, number: int) -> set[str]:
        """Return the clusters of the hosts that see a folder."""
        return {each.cluster for each in self.ranks if each.host in self.hosts[number]}

    def copied_to(self, copies: int) -> dict[int, tuple[int, ...]]:
        """Return, by rank, the ranks that copy its files into their folders, so that `copies` folders hold the files.

        The next folder is in a cluster without a copy, if there is one, and among these it copies for the fewest ranks.
        A folder that several clusters see is not copied.
        """
        targets: dict[int, tuple[int, ...]] = {rank.rank: () for rank in self.ranks}
        taken = [0] * len(self.hosts)
        for number in range(len(self.hosts)):
            used, own = [number], self.ranks_at(number)
            wanted = copies if len(self.clusters_at(number)) == 1 else 1
            while len(used) < min(wanted, len(self.hosts)):
                best = self._next(used, taken)
                used.append(best)
                taken[best] += len(own)
                there = self.ranks_at(best)
                for position, rank in enumerate(own):
                    targets[rank] = (*targets[rank], there[position % len(there)])
        return targets

    def _next(self, used: Sequence[int], taken: Sequence[int]) -> int:
        """Return the folder for the next copy of the files in `used`. `taken` counts the ranks that each one copies."""
        clusters = {cluster for number in used for cluster in self.clusters_at(number)}

        def worse(number: int) -> tuple[bool, int, int]:
            return bool(self.clusters_at(number) & clusters), taken[number], (number - used[0]) % len(taken)

        return min((number for number in range(len(taken)) if number not in used), key=worse)


def find_folders(path: Path, me: Rank, ranks: Sequence[Rank], group: ProcessGroup) -> HostFolders:
    """Create `path` on all hosts and find out which hosts share a folder: each writes a file that others may see.

    All ranks call this. Raises RuntimeError naming the hosts where it cannot be created or written to.
    """
    mark = f"{SEEN}{broadcast_record(FolderMark(SaveId(uuid.uuid4().hex)), group).word}"
    firsts = _first_ranks(ranks)
    own = path / f"{mark}-{me.rank}"
    fault = _touch(path, own, me.host) if me.rank in firsts else None
    faults = [each.text for each in all_gather_records(OptionalText(fault), group) if each.text is not None]
    if faults:
        raise RuntimeError(f"checkpoint.path {path} must be a folder that every host can write to: {'; '.join(faults)}")
    mine = VisibleFiles(_see(path, mark, len(firsts)) if me.rank in firsts else ())
    seen = {rank: set(each.ranks) for rank, each in enumerate(all_gather_records(mine, group))}
    with contextlib.suppress(FileNotFoundError):
        own.unlink()
    hosts: list[list[int]] = []
    for rank in firsts:
        together = next((each for each in hosts if each[0] in seen[rank] and rank in seen[each[0]]), None)
        if together is None:
            hosts.append([rank])
        else:
            together.append(rank)
    names = {rank.rank: rank.host for rank in ranks}
    return HostFolders(tuple(tuple(names[rank] for rank in each) for each in hosts), tuple(ranks))


def _first_ranks(ranks: Sequence[Rank]) -> list[int]:
    """Return the first rank of every host."""
    first: dict[str, int] = {}
    for rank in sorted(ranks, key=lambda each: each.rank):
        first.setdefault(rank.host, rank.rank)
    return list(first.values())


def _touch(path: Path, own: Path, host: str) -> str | None:
    """Create the folder and this host's file. Return the error as text, if any."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        create_plain(own).close()
    except OSError as error:
        return f"host {host}: {error}"
    return None


def _see(path: Path, mark: str, most: int) -> tuple[int, ...]:
    """Return the ranks whose files exist, allowing for the time a network file system may need to show them."""
    is_local = mount_of(path).kind in LOCAL_FILE_SYSTEMS
    deadline_s = time.monotonic() + (0.0 if is_local else SEEN_WITHIN_S)
    while True:
        ranks = (each.name.removeprefix(f"{mark}-") for each in path.glob(f"{mark}-*"))
        seen = tuple(sorted(int(rank) for rank in ranks if rank.isdecimal()))
        if len(seen) == most or time.monotonic() >= deadline_s:
            return seen
        time.sleep(0.1)
