"""Which islands of a run end with one model."""

from __future__ import annotations

import pytest

from holmes_runtime.config.rank_metrics import AppliedOuterSync
from launcher.islands.common_end import common_end, exit_code_of

FINAL = 7  # of two rounds of four fragments


def told(exchange: int, *islands: int, has_joined: bool = False) -> AppliedOuterSync:
    return AppliedOuterSync(exchange, has_joined, islands, 1, 0, 0, 0.0, 0.0, "00")


@pytest.mark.parametrize(
    ("last", "common"),
    [
        ({0: told(FINAL, 0, 1, 2), 1: told(FINAL, 0, 1, 2), 2: told(FINAL, 0, 1, 2)}, (0, 1, 2)),
        ({0: told(FINAL, 0, 2), 1: told(FINAL, 0, 2, has_joined=True), 2: told(FINAL, 0, 2)}, (0, 1, 2)),
        ({0: told(FINAL, 0, 1), 1: told(FINAL, 0, 1), 2: told(FINAL, 2)}, (0, 1)),
        ({0: told(FINAL, 0, 1), 1: told(FINAL, 0, 1)}, (0, 1)),
        ({0: told(FINAL, 0, 1, 2), 2: told(FINAL - 1, 0, 1, 2)}, (0,)),
        ({0: told(FINAL - 1, 0, 1)}, ()),
        ({}, ()),
    ],
)
def test_islands_end_with_one_model_where_the_last_exchange_was_one(
    last: dict[int, AppliedOuterSync], common: tuple[int, ...]
) -> None:
    assert common_end(last, FINAL) == common


@pytest.mark.parametrize(
    ("missing", "may_miss", "exit_code"), [((), False, 0), ((), True, 0), ((1,), False, 1), ((0, 2), True, 0)]
)
def test_an_island_that_was_cut_off_makes_exit_code_1_unless_it_may_miss(
    missing: tuple[int, ...], may_miss: bool, exit_code: int
) -> None:
    assert exit_code_of(missing, may_miss) == exit_code
