"""A number that is not finite is laid at those who made it, not at those it was passed on to."""

from __future__ import annotations

import pytest

from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.parallel.not_finite import first_makers, in_words, last_makers

RANKS = [Rank(pp * 2 + dp, f"h{pp * 2 + dp}", "c", pp, dp, 0) for pp in range(2) for dp in range(2)]


def numbers(ranks: tuple[Rank, ...]) -> list[int]:
    return [rank.rank for rank in ranks]


@pytest.mark.parametrize(
    ("stages", "made"),
    [
        ({}, []),
        ({0: 0, 2: 1}, [0]),
        ({2: 1}, [2]),
        ({1: 0, 3: 1}, [1]),
        ({0: 0, 1: 0, 2: 1, 3: 1}, [0, 1]),
        ({2: 1, 1: 0, 3: 1}, [2, 1]),
        ({0: 2, 2: 1}, [2]),
    ],
)
def test_first_stage_of_each_replica_made_it(stages: dict[int, int], made: list[int]) -> None:
    assert numbers(first_makers({RANKS[rank]: stage for rank, stage in stages.items()})) == made


@pytest.mark.parametrize(("ranks", "made"), [([], []), ([0], [0]), ([0, 2], [2]), ([0, 1, 2, 3], [2, 3])])
def test_gradient_of_the_last_stage_made_it(ranks: list[int], made: list[int]) -> None:
    assert numbers(last_makers([RANKS[rank] for rank in ranks])) == made


def test_words_name_the_rank_and_whether_all_replicas_made_it() -> None:
    assert in_words(RANKS[3:], 2) == "stage 1 of replica 1 (rank 3 on h3)"
    assert in_words(RANKS[:2], 2) == "stage 0 of replica 0 (rank 0 on h0) and all other replicas"
    assert in_words(RANKS[:2], 4) == "stage 0 of replica 0 (rank 0 on h0) and 1 other replica"
