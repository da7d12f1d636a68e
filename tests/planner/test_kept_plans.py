"""Plans stay what they are, byte for byte, unless a commit means to change one and keeps its new line."""

from __future__ import annotations

import sys

import pytest

from tests.planner.kept_plans import cases, plan_line, read_lines

CASES = dict(cases())
LINES = read_lines()
# Cheap ones of several kinds; a commit that plans otherwise changes most of them.
BRIEF = ("bed", "one host", "bed zero-bubble", "interleaved", "random fleet 3", "full recompute", "llama")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sum() rounds floats otherwise from Python 3.12 on")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in BRIEF)) for name in CASES])
def test_plan_is_the_one_that_was_kept(name: str) -> None:
    assert plan_line(name, CASES[name]) == LINES.get(name)


def test_every_kept_plan_is_still_made() -> None:
    assert list(LINES) == list(CASES)
