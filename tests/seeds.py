"""Cases of the layers: a few for the default one, and the rest for the slow one or, of many seeds, `make test-all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings

# For examples that take a tenth of a second each: 3 in the default layer, 15 in the slow one.
EXPENSIVE = settings(max_examples=max(3, settings().max_examples // 10))
SOME = 1 / 32  # of the seeds beyond the few, so that CI ends in time


def few_of(few: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases as parameters: the first few as they are, the others slow ones."""
    return [_parameter(case, () if at < few else (pytest.mark.slow,)) for at, case in enumerate(cases)]


def all_but(names: Collection[str], cases: Iterable[Any]) -> list[Any]:
    """Return the cases as parameters by their names: those of `names` exhaustive, as another shows most of them."""
    by_name = {getattr(case, "name", str(case)): case for case in cases}
    assert by_name.keys() >= set(names), f"{set(names) - by_name.keys()}: no case has that name"
    return [
        pytest.param(case, id=name, marks=pytest.mark.exhaustive if name in names else ())
        for name, case in by_name.items()
    ]


def seeds(number: int, few: int | range, more: int = 0) -> list[Any]:
    """Return the seeds below `number` as parameters: a few, some slow ones and `more`, all others exhaustive."""
    few = range(few) if isinstance(few, int) else few
    others = [seed for seed in range(number) if seed not in few]
    slow = others[: round(len(others) * SOME) + more]
    marks = dict.fromkeys(others, pytest.mark.exhaustive) | dict.fromkeys(slow, pytest.mark.slow)
    return [pytest.param(seed, marks=marks.get(seed, ())) for seed in range(number)]


def seed_ranges(number: int, few: int) -> list[Any]:
    """Return the seeds below `number` as a range for each layer."""
    ends = (0, few, few + round((number - few) * SOME), number)
    marks = ((), pytest.mark.slow, pytest.mark.exhaustive)
    return [
        pytest.param(range(start, end), id=f"{start}-{end}", marks=marks[at])
        for at, (start, end) in enumerate(pairwise(ends))
        if start < end
    ]


def _parameter(case: Any, marks: tuple[pytest.MarkDecorator, ...]) -> Any:
    """Return one case of `few_of`; a tuple has a value for each name."""
    if isinstance(case, type(pytest.param())):
        return case._replace(marks=(*case.marks, *marks))
    return pytest.param(*case, marks=marks) if isinstance(case, tuple) else pytest.param(case, marks=marks)
