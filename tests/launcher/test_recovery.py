"""What follows a failure, as the settings ask."""

from __future__ import annotations

import pytest

from holmes_core.records.run import Settings
from launcher.supervise.recovery import next_step


@pytest.mark.parametrize(
    ("settings", "restarts_done", "lost", "expected"),
    [
        (Settings(), 0, (), "end"),
        (Settings(restarts=2), 1, (), "restart"),
        (Settings(restarts=2), 2, (), "end"),
        (Settings(restarts=2), 0, ("b2",), "end"),
        (Settings(on_loss="replan"), 0, ("b2",), "replan"),
        (Settings(on_loss="wait", restarts=1), 1, ("b2",), "wait"),
        (Settings(on_loss="replan"), 0, (), "end"),
    ],
)
def test_next_step(settings: Settings, restarts_done: int, lost: tuple[str, ...], expected: str) -> None:
    assert next_step(settings, restarts_done, lost) == expected
