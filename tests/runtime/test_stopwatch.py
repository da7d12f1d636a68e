"""Every moment belongs to the innermost open lap."""

from __future__ import annotations

import pytest
import torch

from holmes_runtime.comm.stopwatch import REST, Stopwatch


class Clock:
    """A clock that is told the time."""

    now_s = 0.0

    def read_s(self) -> float:
        return self.now_s


def test_a_lap_inside_another_stops_the_outer_one() -> None:
    clock = Clock()
    watch = Stopwatch(torch.device("cpu"), clock.read_s)

    clock.now_s = 1.0
    with watch.lap("forward"):
        clock.now_s = 3.0
        with watch.lap("wait"):
            clock.now_s = 7.0
        clock.now_s = 8.0
    clock.now_s = 9.0

    assert watch.read_s() == {REST: 2.0, "forward": 3.0, "wait": 4.0}
    clock.now_s = 10.0
    assert watch.read_s() == {REST: 1.0}


def test_a_lap_ends_with_an_error() -> None:
    watch = Stopwatch(torch.device("cpu"))

    def fail() -> None:
        with watch.lap("forward"):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    watch.read_s()
    assert set(watch.read_s()) == {REST}
