"""Work aside: its result arrives, its failures are those of the work done here, and nothing outlives the context."""

from __future__ import annotations

import os
import signal
import time

import pytest

from planner.background import Aside


def test_result_comes_from_another_process_with_what_this_one_holds() -> None:
    held = {"rank": 3}
    with Aside(lambda: (held["rank"], os.getpid())) as aside:
        held["rank"] = 4
        rank, pid = aside.result()
    assert rank == 3
    assert pid != os.getpid()


def test_work_that_fails_aside_fails_here() -> None:
    def fail() -> None:
        raise ValueError(os.getpid())

    with Aside(fail) as aside, pytest.raises(ValueError, match=str(os.getpid())):
        aside.result()


def test_work_whose_process_is_killed_is_done_here() -> None:
    here = os.getpid()

    def die_elsewhere() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    with Aside(die_elsewhere) as aside:
        assert aside.result() == here


def test_work_that_stands_still_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.background.PATIENCE_S", 0.1)
    here = os.getpid()

    def stand_still_elsewhere() -> int:
        if os.getpid() != here:
            time.sleep(600)
        return os.getpid()

    with Aside(stand_still_elsewhere) as aside:
        assert aside.result() == here


def test_work_that_was_never_begun_is_done_here() -> None:
    assert Aside(os.getpid).result() == os.getpid()


def test_leaving_early_ends_the_work() -> None:
    with Aside(lambda: time.sleep(600)) as aside:
        pid = aside._child.pid
        assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
