"""A run goes on after what can be mended: a killed rank, a host that is away for a while, a host that became slow.

And one that is stopped loses nothing that it could save.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from launcher.journal.run_folder import read_run
from tests.builders.bed_runs import launched, losses_from, plan_that_saves
from tests.cli.test_three_commands import nothing_is_left
from tests.testbed.bed import Bed
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rank_processes import rank_pids
from tests.testbed.rehearsal import Site, only_run, said_until

pytestmark = NEEDS_BED


def test_killed_rank_costs_a_restart_from_the_checkpoint(site: Site, bed: Bed, tmp_path: Path) -> None:
    plan = plan_that_saves(site, tmp_path, parallel={"pp": 2, "dp": 2, "micro_batch_size": 1})
    process = launched(site, tmp_path / "runs", plan, "--restarts", "1")
    try:
        said_until(process, "step 13/")
        (victim,) = rank_pids(bed, "b1")
        os.kill(victim, signal.SIGKILL)
        assert "restart 1 of 1 on the same hosts" in said_until(process, "step 11/")
        said = process.communicate(timeout=600)[1]
    finally:
        process.kill()
    assert process.returncode == 0, said
    run = read_run(only_run(tmp_path / "runs"))
    assert (run.state, run.attempt, run.steps_done) == ("done", 1, 40)
    assert sorted(losses_from(only_run(tmp_path / "runs"), after=0)) == list(range(40))
    assert nothing_is_left(bed)


def test_host_that_is_away_for_a_while_is_waited_for(site: Site, bed: Bed, tmp_path: Path) -> None:
    plan = plan_that_saves(site, tmp_path, parallel={"pp": 2, "dp": 2, "micro_batch_size": 1})
    process = launched(site, tmp_path / "runs", plan, "--on-loss", "wait")
    try:
        said_until(process, "step 13/")
        bed.set_link("b2", "eno1", up=False)
        said_until(process, "waiting for b2")
        bed.set_link("b2", "eno1", up=True)
        said_until(process, "step 11/")
        said = process.communicate(timeout=600)[1]
    finally:
        bed.set_link("b2", "eno1", up=True)
        process.kill()
    assert process.returncode == 0, said
    run = read_run(only_run(tmp_path / "runs"))
    assert (run.state, run.attempt, run.steps_done) == ("done", 1, 40)
    assert nothing_is_left(bed)


@contextlib.contextmanager
def slowed(pid: int) -> Iterator[None]:
    """The process runs a quarter of the time."""
    enough = threading.Event()

    def hold_back() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not enough.wait(0.05):
                os.kill(pid, signal.SIGSTOP)
                enough.wait(0.15)
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=hold_back)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def test_slow_host_is_planned_around(site: Site, bed: Bed, tmp_path: Path) -> None:
    emulated = {"emulate": {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02}}
    plan = plan_that_saves(site, tmp_path, compute=emulated, steps=30)
    process = launched(site, tmp_path / "runs", plan, "--replan-when-slow")
    try:
        said_until(process, "step 2/")
        host = read_file(Plan, plan).nodes[-1].host
        (victim,) = rank_pids(bed, host)
        with slowed(victim):
            said = said_until(process, "the ranks save after this step")
        said += process.communicate(timeout=600)[1]
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert f"slow host {host}: computes " in said
    assert host not in [node.host for node in read_file(Plan, only_run(tmp_path / "runs") / "plan.json").nodes]
    run = read_run(only_run(tmp_path / "runs"))
    assert (run.state, run.attempt, run.steps_done) == ("done", 1, 30)
    assert nothing_is_left(bed)


SLOW = {
    "emulate": {"forward_s_per_layer": 0.1, "backward_s_per_layer": 0.15}
}  # a step takes longer than a kill's grace


@pytest.fixture
def slow_run(site: Site, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A launch that is in its second step."""
    plan = plan_that_saves(site, tmp_path, compute=SLOW, parallel={"pp": 2, "dp": 2, "micro_batch_size": 1})
    process = launched(site, tmp_path / "runs", plan)
    said_until(process, "step 1/")
    yield process
    process.kill()
    process.communicate()


def test_stop_lets_the_ranks_finish_their_step_and_save(
    site: Site, bed: Bed, tmp_path: Path, slow_run: subprocess.Popen[str]
) -> None:
    command = site.command("stop", str(only_run(tmp_path / "runs")))
    stopped = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert "the ranks finish their step and save; `holmes stop " in stopped.stderr
    assert slow_run.wait(timeout=600) == 130
    run = read_run(only_run(tmp_path / "runs"))
    assert (run.state, run.failures) == ("stopped", ())
    assert run.steps_done >= 2
    assert (tmp_path / "checkpoints" / "latest").read_text(encoding="utf-8").strip() == f"step-{run.steps_done:08}"
    assert nothing_is_left(bed)


def test_second_ctrl_c_does_not_wait_for_the_step(bed: Bed, tmp_path: Path, slow_run: subprocess.Popen[str]) -> None:
    slow_run.send_signal(signal.SIGINT)
    said_until(slow_run, "the ranks finish this step and save")
    slow_run.send_signal(signal.SIGINT)
    assert slow_run.wait(timeout=600) == 130
    assert not (tmp_path / "checkpoints" / "latest").exists()
    assert nothing_is_left(bed)
