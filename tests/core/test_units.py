"""Numbers as people read them."""

from __future__ import annotations

import pytest

from holmes_core.units import format_names, format_seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.236, "1.24 s"),
        (1.0, "1.00 s"),
        (0.9996, "1.00 s"),
        (0.9994, "999 ms"),
        (0.0352, "35.2 ms"),
        (0.00012, "0.12 ms"),
        (0.0, "0 ms"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_of_many_names_the_first_are_said_and_how_many_more() -> None:
    assert format_names(["a1", "a2"], 2) == "a1, a2"
    assert format_names(["a1", "a2", "b1", "b2"], 2) == "a1, a2 and 2 more"
