"""A run without progress is called hung in time, and the rank that holds up the others is named."""

from __future__ import annotations

from launcher.supervise.hang import ASK_S, LEAST_S, HangDetector
from tests.launcher.plans import cpu_plan

WAITING = ["Thread 0x1 (most recent call first):", '  File "torch/distributed/distributed_c10d.py", line 1 in wait']
BUSY = ["Thread 0x1 (most recent call first):", '  File "user.py", line 7 in spin']


def hung(steps: tuple[int, ...] = (3, 3, 3, 3)) -> tuple[HangDetector, float]:
    """Ranks that have been asked where they are after those steps, and when they are to be judged."""
    detector = HangDetector(cpu_plan(), now_s=0.0)
    for rank, step in enumerate(steps):
        detector.take_progress(rank, step, now_s=0.0)
    asked_s = detector.limit_s + 1
    assert detector.asks_now(asked_s)
    assert not detector.asks_now(asked_s)
    return detector, asked_s + ASK_S


def test_limit_is_sooner_than_the_jobs_timeout_and_later_than_many_steps() -> None:
    detector = HangDetector(cpu_plan(compute={"flops_per_s": 1e13}), now_s=0.0)
    assert detector.limit_s == LEAST_S
    detector.take_step(10.0)
    assert detector.limit_s == 200.0
    detector.take_step(1000.0)
    assert detector.limit_s == 300.0  # timeout_s is 600


def test_nothing_is_hung_before_every_rank_took_a_step() -> None:
    detector = HangDetector(cpu_plan(), now_s=0.0)
    detector.take_progress(0, 0, now_s=0.0)
    assert not detector.asks_now(10_000.0)


def test_stopped_process_holds_up_the_others() -> None:
    detector, now_s = hung()
    detector.take_states({0: "S", 1: "S", 2: "T", 3: "S"})
    found = detector.culprit({}, now_s)
    assert found is not None
    assert found[0] == 2
    assert "its process is stopped by a signal" in found[1]


def test_rank_behind_the_others_holds_them_up() -> None:
    detector, now_s = hung((3, 2, 3, 3))
    found = detector.culprit({}, now_s)
    assert found is not None
    assert found[0] == 1


def test_rank_that_waits_for_nobody_holds_up_the_others() -> None:
    detector, now_s = hung()
    found = detector.culprit({0: WAITING, 1: WAITING, 2: WAITING, 3: BUSY}, now_s)
    assert found is not None
    assert found[0] == 3


def test_progress_takes_the_question_back() -> None:
    detector, now_s = hung()
    detector.take_progress(0, 4, now_s)
    assert detector.culprit({}, now_s) is None
