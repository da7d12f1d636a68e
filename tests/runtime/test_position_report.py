"""A rank says where it is when it is asked, whatever the thread that trains is stuck in."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from holmes_runtime.config.messages import ASK_SIGNAL, GroupProgress, RankPosition
from holmes_runtime.config.strict_json import parse
from holmes_runtime.health.position_report import PositionReport
from tests.eventually import eventually

MODULE = """
import sys, threading
from pathlib import Path
from holmes_runtime.health.position_report import PositionReport

def main():
    where = PositionReport(5, lambda: ())
    where.answer(Path(sys.argv[1]))
    where.now("waiting for a lock that nobody gives back", alone=True)
    lock = threading.Lock()
    lock.acquire()
    print("stuck", flush=True)
    lock.acquire()
"""


def has_lines(file: Path, count: int) -> bool:
    return file.exists() and len(file.read_text().splitlines()) == count


@pytest.mark.slow
def test_a_rank_that_is_stuck_answers(tmp_path: Path) -> None:
    (tmp_path / "given.py").write_text(MODULE, encoding="utf-8")
    command = [sys.executable, "-m", "holmes_runtime.node.lean_start", "given", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as stuck:
        try:
            assert stuck.stdout is not None
            assert stuck.stdout.readline() == "stuck\n"
            file = tmp_path / "positions-rank5.jsonl"
            for count in (1, 2):
                stuck.send_signal(ASK_SIGNAL)
                assert eventually(partial(has_lines, file, count))
        finally:
            stuck.kill()
    position = parse(RankPosition, file.read_text().splitlines()[-1])
    assert (position.rank, position.doing) == (5, "waiting for a lock that nobody gives back")
    assert (position.alone, position.groups) == (True, ())
    assert position.stack[-1] == f'File "{tmp_path / "given.py"}", line 13, in main'
    assert position.working_in == "given.py line 13 in main"


def test_without_the_signal_blocked_no_thread_waits_for_it(tmp_path: Path) -> None:
    PositionReport(0, lambda: ()).answer(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_record_that_cannot_be_read_is_said_and_ends_nothing() -> None:
    def broken() -> tuple[GroupProgress, ...]:
        raise ValueError("another format")

    position = PositionReport(0, broken).position()
    assert position.doing == "starting (torch's flight recorder cannot be read: another format)"
    assert position.groups == ()
