"""A restart goes on from what its run has saved: it begins at step 1 only where nothing was saved yet, and says so."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from launcher.journal.run_folder import read_run
from tests.cli.test_goes_back import plan_saving_every_step
from tests.testbed.rehearsal import local_site, only_run

pytestmark = pytest.mark.process

FORWARDS_A_STEP = 4  # micro-batches
FAILS_ONCE = """
import shutil
import time
from pathlib import Path

from own_model import build

def build_once(stage_layers, job):
    stage, mark, calls = build(stage_layers, job), Path({mark!r}), []

    def count(*arguments):
        calls.append(None)
        if len(calls) > {steps} * {forwards} and mark.exists():
            mark.unlink()
            removed = Path({removed!r})
            latest = removed / "latest"
            while removed.exists() and not (latest.exists() and "step-{steps:08}" in latest.read_text()):
                time.sleep(0.05)  # else what is being saved is written after it is removed
            shutil.rmtree(removed, ignore_errors=True)
            raise ValueError("on purpose")

    if stage_layers.start == 0:
        stage.register_forward_pre_hook(count)
    return stage
"""


def launched(folder: Path, after_steps: int, removed: Path, every_steps: int) -> subprocess.CompletedProcess[str]:
    """A run with one restart whose first start fails in its step `after_steps` + 1, once `removed` is deleted."""
    site, saved = local_site(folder), {"path": str(folder / "saved"), "every_steps": every_steps, "keep_last": 6}
    plan = plan_saving_every_step(site, folder, checkpoint=saved)
    values = {"mark": str(folder / "fails"), "removed": str(removed)}
    text = FAILS_ONCE.format(**values, steps=after_steps, forwards=FORWARDS_A_STEP)
    (folder / "model.py").write_text(text, encoding="utf-8")
    (folder / "fails").touch()
    command = site.command(
        "launch", str(plan), "--runs", str(folder / "runs"), "--restarts", "1", "--force", "plan-current"
    )
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def steps_taken(folder: Path) -> list[int]:
    lines = (only_run(folder / "runs") / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_a_restart_before_the_first_checkpoint_begins_at_step_1_and_says_so(tmp_path: Path) -> None:
    done = launched(tmp_path, after_steps=2, removed=tmp_path / "nothing", every_steps=5)
    assert done.returncode == 0, done.stderr
    assert f"no checkpoint in {tmp_path / 'saved'}: starting at step 1 with random weights" in done.stderr
    run = read_run(only_run(tmp_path / "runs"))
    assert (run.attempt, run.safe_steps) == (1, 6)
    assert steps_taken(tmp_path) == [0, 1, *range(6)]


def test_a_restart_that_no_longer_finds_what_was_saved_is_refused(tmp_path: Path) -> None:
    done = launched(tmp_path, after_steps=4, removed=tmp_path / "saved", every_steps=1)
    assert done.returncode != 0
    assert f"preflight check checkpoints failed: {tmp_path / 'saved'} holds no checkpoint on" in done.stderr
    assert steps_taken(tmp_path) == [0, 1, 2, 3]
    assert not list(tmp_path.glob("saved/step-*"))
