"""A lost host costs a new plan and a restart from the last checkpoint, not the run; and it may come back."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from launcher.journal.run_folder import read_run
from tests.builders.bed_runs import launched, losses_from, plan_that_saves
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, only_run, said_until

pytestmark = NEEDS_BED


@contextmanager
def until_interrupted(site: Site, folder: Path, plan: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A launch that is interrupted, as by Ctrl-C, after what is done with it; b2 has its link again in any case."""
    assert site.bed is not None
    process = launched(site, folder, plan, *options)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=600)[1]
    finally:
        site.bed.set_link("b2", "eno1", up=True)
        process.kill()
    assert process.returncode == 130, said


@pytest.mark.exhaustive  # test_lost_disk.py goes on from the newest checkpoint, test_continuity.py with equal losses
def test_training_goes_on_without_the_lost_host_from_the_newest_checkpoint(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.bed is not None
    process = launched(site, tmp_path / "runs", plan_that_saves(site, tmp_path), "--on-loss", "replan")
    try:
        said_until(process, "step 13/")
        site.bed.set_link("b2", "eno1", up=False)
        lost_s = time.monotonic()
        said_until(process, "plan without b2: ")
        first = said_until(process, "step ").splitlines()[-1]
        seconds = time.monotonic() - lost_s
        said = process.communicate(timeout=600)[1]
    finally:
        site.bed.set_link("b2", "eno1", up=True)
        process.kill()
    assert process.returncode == 0, said
    with capsys.disabled():
        print(f"\nfrom the loss of a host to the next step: {seconds:.1f} s")
    run = only_run(tmp_path / "runs")
    assert [node.host for node in read_file(Plan, run / "plan.json").nodes if node.host == "b2"] == []
    saved = int(first.removeprefix("step ").split("/")[0]) - 1  # steps that pass before the loss is seen may be saved
    assert saved in (10, 20, 30), first
    after = losses_from(run, after=saved)
    assert sorted(after) == list(range(saved, 40))

    checkpoints = tmp_path / "checkpoints"
    for later in range(saved + 10, 41, 10):
        shutil.rmtree(checkpoints / f"step-{later:08}")
    (checkpoints / "latest").write_text(f"step-{saved:08}", encoding="utf-8")
    fresh = launched(site, tmp_path / "fresh", run / "plan.json", "--resume", "--force", "plan-current")
    said = fresh.communicate(timeout=600)[1]
    assert fresh.returncode == 0, said
    again = losses_from(only_run(tmp_path / "fresh"), after=saved)
    assert again == pytest.approx(after, abs=1e-6)


def test_a_host_out_of_reach_for_nine_seconds_is_not_lost_and_one_that_answers_again_is_taken_back(
    site: Site, tmp_path: Path
) -> None:
    assert site.bed is not None
    # Emulated, since of hosts that share this machine's cores a plan may leave some out.
    emulated = {"emulate": {"forward_s_per_layer": 0.004, "backward_s_per_layer": 0.008}}
    plan = plan_that_saves(site, tmp_path, steps=100000, compute=emulated)
    with until_interrupted(site, tmp_path / "runs", plan, "--on-loss", "replan") as process:
        said_until(process, "step 13/")
        site.bed.set_link("b2", "eno1", up=False)
        time.sleep(9.0)
        site.bed.set_link("b2", "eno1", up=True)
        said_until(process, "4 of 4 nodes: stepping")
        said_until(process, "step ")
        run = read_run(only_run(tmp_path / "runs"))
        assert (run.attempt, run.failures) == (0, ())
        site.bed.set_link("b2", "eno1", up=False)
        assert "plan without b2: " in said_until(process, "3 of 3 nodes: stepping")
        site.bed.set_link("b2", "eno1", up=True)
        said_until(process, "plan with b2 again: ")
        said_until(process, "4 of 4 nodes: stepping")
    assert [node.host for node in read_file(Plan, only_run(tmp_path / "runs") / "plan.json").nodes if node.host == "b2"]
