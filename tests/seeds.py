"""Seeds of drawn cases: a few for the default layer, the others for the slow one."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(number: int, few: int) -> list[Any]:
    """Return the seeds below `number` as parameters; those from `few` on are slow."""
    return [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= few)) for seed in range(number)]


def seed_ranges(number: int, few: int) -> list[Any]:
    """Return the same seeds as two ranges, the second one slow."""
    return [
        pytest.param(range(few), id=f"0-{few}"),
        pytest.param(range(few, number), id=f"{few}-{number}", marks=pytest.mark.slow),
    ]
