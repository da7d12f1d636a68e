"""Work in the background: its result arrives, it fails as the work done here does, and nothing outlives it."""

from __future__ import annotations

import os
import signal
import time

import pytest

from planner import background as background_module
from planner.background import BackgroundCall

WAIT_S = 600.0  # for work that takes no time


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is done in children, as in commands."""
    monkeypatch.setattr(background_module, "FORKS_SAFELY", True)


def test_result_comes_from_another_process_with_what_this_one_holds() -> None:
    held = {"rank": 3}
    with BackgroundCall(lambda: (held["rank"], os.getpid())) as background:
        held["rank"] = 4
        found = background.result_within(WAIT_S)
    assert found is not None
    rank, pid = found
    assert rank == 3
    assert pid != os.getpid()


def test_work_that_fails_has_no_result() -> None:
    def fail() -> int:
        raise ValueError(os.getpid())

    with BackgroundCall(fail) as background:
        assert background.result_within(WAIT_S) is None


def test_work_whose_process_is_killed_has_no_result() -> None:
    here = os.getpid()

    def die_elsewhere() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    with BackgroundCall(die_elsewhere) as background:
        assert background.result_within(WAIT_S) is None


def test_work_that_hangs_has_no_result_in_time() -> None:
    def hang() -> bool:
        time.sleep(600)
        return True

    with BackgroundCall(hang) as background:
        assert background.result_within(0.1) is None


def test_work_that_was_never_begun_is_done_here() -> None:
    assert BackgroundCall(os.getpid).result_within(WAIT_S) == os.getpid()


def test_leaving_early_ends_the_work() -> None:
    with BackgroundCall(lambda: time.sleep(600)) as background:
        pid = background._child.pid
        assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_interrupt_while_the_process_is_made_is_not_lost() -> None:
    interrupting = True

    def interrupt() -> None:
        if interrupting:
            signal.raise_signal(signal.SIGINT)

    os.register_at_fork(after_in_parent=interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), BackgroundCall(os.getpid):
            pass
    finally:
        interrupting = False
