"""A fault in a user's model is laid at the rank that has it; `python -m tests.cli.planted` tries all on all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.local_runs import nothing_is_left
from tests.cli.planted import launch_with

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("fault", "rank", "exit_code", "words"),
    [  # exhaustive: others have the kind of fault on another rank, here or in test_run_commands.py
        ("hang", 2, 1, "rank 2 holds up the others: it is in planted_model.py line 18 in forward"),
        pytest.param(
            *("not a number", 1, 1, "stage 1 of replica 0 (rank 1 on a1): the loss is nan"),
            marks=pytest.mark.exhaustive,
        ),
        ("not a number", 2, 1, "stage 0 of replica 1 (rank 2 on b1): the loss is nan"),
        ("exception", 3, 1, "ValueError: a shape that cannot be"),
        ("out of memory", 0, 1, "MemoryError: cannot hold the activations"),
        ("slow data", 3, 0, "slow data on b1: rank 3 waits 0."),
        pytest.param(*("killed", 1, 137, "the kernel counts no out-of-memory kill"), marks=pytest.mark.exhaustive),
    ],
)
def test_right_rank_is_named(tmp_path: Path, fault: str, rank: int, exit_code: int, words: str) -> None:
    blamed = launch_with(tmp_path, fault, rank)
    assert (blamed.ranks, blamed.exit_code) == ({rank}, exit_code), blamed.stderr
    assert words in blamed.stderr
    assert nothing_is_left(tmp_path)
