"""Seeds of drawn cases: a few for the default layer, some for the slow one, all for `make test-all`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

SOME = 1 / 8  # of the seeds beyond the few, so that CI ends in time


def seeds(number: int, few: int) -> list[Any]:
    """Return the seeds below `number` as parameters: a few, some slow ones, all others exhaustive."""
    return [pytest.param(seed, marks=_marks(seed, number, few)) for seed in range(number)]


def seed_ranges(number: int, few: int) -> list[Any]:
    """Return the same seeds as a range for each layer."""
    ends = (0, few, _end_of_some(number, few), number)
    found = [range(start, end) for start, end in pairwise(ends) if start < end]
    return [pytest.param(each, id=f"{each.start}-{each.stop}", marks=_marks(each.start, number, few)) for each in found]


def _end_of_some(number: int, few: int) -> int:
    return few + round((number - few) * SOME)


def _marks(seed: int, number: int, few: int) -> list[pytest.MarkDecorator]:
    if seed < few:
        return []
    return [pytest.mark.slow if seed < _end_of_some(number, few) else pytest.mark.exhaustive]
