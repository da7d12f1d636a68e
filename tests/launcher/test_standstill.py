"""A run without progress is called hung in time, and the rank that holds up the others is named."""

from __future__ import annotations

import pytest

from launcher.supervise import hang as standstill
from launcher.supervise.hang import Standstill
from tests.launcher.plans import cpu_plan

WAITING = ["Thread 0x1 (most recent call first):", '  File "torch/distributed/distributed_c10d.py", line 1 in wait']
BUSY = ["Thread 0x1 (most recent call first):", '  File "user.py", line 7 in spin']


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("launcher.supervise.hang.time.monotonic", lambda: now[0])
    return now


def hung(clock: list[float], steps: tuple[int, ...] = (3, 3, 3, 3)) -> Standstill:
    watch = Standstill(cpu_plan())
    for rank, step in enumerate(steps):
        watch.take_progress(rank, step)
    clock[0] += watch.limit_s + 1
    assert watch.asks_now()
    assert not watch.asks_now()
    clock[0] += standstill.ASK_S
    return watch


def test_limit_is_sooner_than_the_jobs_timeout_and_later_than_many_steps() -> None:
    watch = Standstill(cpu_plan(compute={"flops_per_s": 1e13}))
    assert watch.limit_s == standstill.LEAST_S
    watch.take_step(10.0)
    assert watch.limit_s == 200.0
    watch.take_step(1000.0)
    assert watch.limit_s == 300.0  # timeout_s is 600


def test_nothing_is_hung_before_every_rank_took_a_step(clock: list[float]) -> None:
    watch = Standstill(cpu_plan())
    watch.take_progress(0, 0)
    clock[0] += 10_000
    assert not watch.asks_now()


def test_stopped_process_holds_up_the_others(clock: list[float]) -> None:
    watch = hung(clock)
    watch.take_states({0: "S", 1: "S", 2: "T", 3: "S"})
    verdict = watch.verdict({})
    assert verdict is not None
    assert verdict[0] == 2
    assert "its process is stopped by a signal" in verdict[1]


def test_rank_behind_the_others_holds_them_up(clock: list[float]) -> None:
    verdict = hung(clock, (3, 2, 3, 3)).verdict({})
    assert verdict is not None
    assert verdict[0] == 1


def test_rank_that_waits_for_nobody_holds_up_the_others(clock: list[float]) -> None:
    verdict = hung(clock).verdict({0: WAITING, 1: WAITING, 2: WAITING, 3: BUSY})
    assert verdict is not None
    assert verdict[0] == 3


def test_progress_takes_the_question_back(clock: list[float]) -> None:
    watch = hung(clock)
    watch.take_progress(0, 4)
    assert watch.verdict({}) is None
