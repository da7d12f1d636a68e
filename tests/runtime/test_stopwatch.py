"""Every moment belongs to the innermost open lap."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.stopwatch import REST, Stopwatch
from holmes_runtime.config.run_settings import OptimizerSettings
from holmes_runtime.parallel.zero1 import Zero1


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


class Gpu:
    """A stream that is told how far it has come; its events say of what they were asked too early."""

    def __init__(self) -> None:
        self.now_s, self.recorded, self.waited = 0.0, 0, 0

    def event(self) -> torch.cuda.Event:
        return Event(self)  # type: ignore[return-value]


class Event:
    """What `Stopwatch` uses of torch.cuda.Event."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def record(self) -> None:
        self.at_s = self._gpu.now_s
        self._gpu.recorded += 1

    def synchronize(self) -> None:
        self._gpu.waited += 1

    def elapsed_time(self, end: Event) -> float:
        assert self._gpu.waited, "not known to have passed"
        return (end.at_s - self.at_s) * 1e3


def step_of(watch: Stopwatch, gpu: Gpu, forward_s: float) -> None:
    with watch.lap("forward"):
        gpu.now_s += forward_s
    gpu.now_s += 1.0


def test_a_gpu_is_read_a_step_late_and_waited_for_only_where_the_host_would_wait_anyway() -> None:
    gpu = Gpu()
    watch = Stopwatch(torch.device("cuda"), new_event=gpu.event)

    step_of(watch, gpu, 2.0)
    assert watch.read_s() == {}
    assert gpu.waited == 0
    step_of(watch, gpu, 3.0)
    watch.add_up()
    assert gpu.waited == 1
    assert watch.read_s() == {"forward": 2.0, REST: 1.0}
    assert gpu.waited == 1
    step_of(watch, gpu, 4.0)
    assert watch.read_s() == {"forward": 3.0, REST: 1.0}


def test_what_is_skipped_is_part_of_no_reading_and_hides_none() -> None:
    gpu = Gpu()
    watch = Stopwatch(torch.device("cuda"), new_event=gpu.event)

    step_of(watch, gpu, 2.0)
    watch.read_s()
    step_of(watch, gpu, 100.0)  # an evaluation
    watch.skip()
    step_of(watch, gpu, 3.0)
    assert watch.read_s() == {"forward": 2.0, REST: 1.0}
    assert watch.read_s() == {"forward": 3.0, REST: 1.0}


def test_weights_that_are_there_are_no_lap() -> None:
    """A layer asks for its weights before each forward; on a GPU a lap is two events."""
    gpu = Gpu()
    layer = nn.Linear(2, 2)
    settings = OptimizerSettings(1e-3, 0.0, 0, "constant", 0.1, 0.9, 0.95, None)
    watch = Stopwatch(torch.device("cuda"), new_event=gpu.event)
    Zero1([layer], {}, settings, RankGroups(), 1, watch)
    before = gpu.recorded
    layer(torch.ones(1, 2))

    assert gpu.recorded == before
