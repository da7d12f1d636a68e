"""Work in the background: its result arrives, it fails as the work done here does, and nothing outlives it."""

from __future__ import annotations

import os
import signal
import time

import pytest

from planner import background as background_module
from planner.background import BackgroundCall


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is done in children, as in commands."""
    monkeypatch.setattr(background_module, "FORKS_SAFELY", True)


def test_result_comes_from_another_process_with_what_this_one_holds() -> None:
    held = {"rank": 3}
    with BackgroundCall(lambda: (held["rank"], os.getpid())) as background:
        held["rank"] = 4
        rank, pid = background.result()
    assert rank == 3
    assert pid != os.getpid()


def test_work_that_fails_elsewhere_fails_here() -> None:
    def fail() -> None:
        raise ValueError(os.getpid())

    with BackgroundCall(fail) as background, pytest.raises(ValueError, match=str(os.getpid())):
        background.result()


def test_work_whose_process_is_killed_is_done_here() -> None:
    here = os.getpid()

    def die_elsewhere() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    with BackgroundCall(die_elsewhere) as background:
        assert background.result() == here


def test_work_that_hangs_is_done_here() -> None:
    here = os.getpid()

    def hang_elsewhere() -> int:
        if os.getpid() != here:
            time.sleep(600)
        return os.getpid()

    with BackgroundCall(hang_elsewhere, patience_s=0.1) as background:
        assert background.result() == here


def test_work_that_was_never_begun_is_done_here() -> None:
    assert BackgroundCall(os.getpid).result() == os.getpid()


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
