"""What a run of islands shows of an exchange."""

from __future__ import annotations

import pytest

from holmes_cli.islands.islands_view import exchange_in_words
from holmes_runtime.config.rank_metrics import AppliedOuterSync


@pytest.mark.parametrize(
    ("has_joined", "said"),
    [
        (False, "outer sync 5 of islands 0, 2: 3.00 MB sent in 1.50 s, waited for 250 ms"),
        (
            True,
            "outer sync 5: joined late, received the state of islands 0, 2 and dropped its own progress since "
            "the last one; 1.50 s, waited for 250 ms",
        ),
    ],
)
def test_an_exchange_says_with_whom_and_what_is_lost_by_who_comes_late(has_joined: bool, said: str) -> None:
    exchange = AppliedOuterSync(4, has_joined, (0, 2), 4096, 3_000_000, 3_000_000, 1.5, 0.25, "00ff")

    assert exchange_in_words(exchange) == said
