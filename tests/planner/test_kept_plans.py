"""Plans stay what they are, byte for byte, unless a commit means to change one and keeps the new digest."""

from __future__ import annotations

import json
import sys

import pytest

from tests.planner.kept_plans import KEPT, cases, digest

CASES = dict(cases())
DIGESTS = json.loads(KEPT.read_text(encoding="utf-8"))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sum() rounds floats otherwise from Python 3.12 on")
@pytest.mark.parametrize("name", CASES)
def test_plan_is_the_one_that_was_kept(name: str) -> None:
    assert digest(CASES[name]) == DIGESTS[name]


def test_every_kept_plan_is_still_made() -> None:
    assert list(DIGESTS) == list(CASES)
