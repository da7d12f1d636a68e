"""Where the copies of each rank's files go."""

from __future__ import annotations

import pytest

from holmes_runtime.checkpoint.host_folders import HostFolders
from holmes_runtime.config.rank_grid import Rank


def folders(*hosts: str, ranks_each: int = 1) -> HostFolders:
    """A folder a text: the hosts that see it, whose first letters are their clusters."""
    names = [host for together in hosts for host in together.split() for _ in range(ranks_each)]
    ranks = tuple(Rank(rank, host, host[0], rank, 0, 0) for rank, host in enumerate(names))
    return HostFolders(tuple(tuple(together.split()) for together in hosts), ranks)


@pytest.mark.parametrize(
    ("hosts", "copies", "expected"),
    [
        (("a1", "a2", "b1", "b2"), 2, {0: (2,), 1: (3,), 2: (0,), 3: (1,)}),
        (("a1", "b1"), 2, {0: (1,), 1: (0,)}),
        (("a1", "b1"), 1, {0: (), 1: ()}),
        (("a1", "b1"), 3, {0: (1,), 1: (0,)}),
        (("a1", "a2", "a3"), 2, {0: (1,), 1: (2,), 2: (0,)}),
        (("a1", "b1", "c1"), 3, {0: (1, 2), 1: (0, 2), 2: (0, 1)}),
        (("a1 b1",), 2, {0: (), 1: ()}),
        (("a1 a2",), 2, {0: (), 1: ()}),
        (("a1 b1", "b2"), 2, {0: (), 1: (), 2: (0,)}),
        (("a1 a2", "b1 b2"), 2, {0: (2,), 1: (3,), 2: (0,), 3: (1,)}),
    ],
)
def test_copies_go_to_other_clusters_first_and_nowhere_from_what_several_see(
    hosts: tuple[str, ...], copies: int, expected: dict[int, tuple[int, ...]]
) -> None:
    assert folders(*hosts).copied_to(copies) == expected


def test_the_ranks_that_see_a_folder_share_the_work_of_copying_into_it() -> None:
    assert folders("a1", "b1", ranks_each=2).copied_to(2) == {0: (2,), 1: (3,), 2: (0,), 3: (1,)}


def test_no_folder_takes_more_than_its_share() -> None:
    copied = folders("a1", "a2", "a3", "a4", "b1", "b2").copied_to(2)

    targets = [target for each in copied.values() for target in each]
    assert sorted(targets.count(rank) for rank in range(6)) == [0, 0, 1, 1, 2, 2]
