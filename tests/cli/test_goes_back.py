"""A run goes back to an older checkpoint: whole, also if its first start fails, and refuses what cannot go back."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher.journal.run_folder import read_run
from tests.cli.conftest import Command
from tests.testbed.rehearsal import Site, local_site, only_run

MODEL = """
from pathlib import Path

def build_once(stage_layers, job):
    mark = Path({mark!r})
    if mark.exists() and stage_layers.start == 0:
        mark.unlink()
        raise ValueError("on purpose")
    from own_model import build
    return build(stage_layers, job)
"""
OWN_MODEL = Path(__file__).parents[2] / "examples" / "own-model-file" / "own_model.py"


def plan_saving_every_step(site: Site, folder: Path, **changes: Any) -> Path:
    """A plan of six steps that saves after every one."""
    (folder / "model.py").write_text(MODEL.format(mark=str(folder / "fails")), encoding="utf-8")
    (folder / "corpus.txt").write_text("To be, or not to be. " * 2000, encoding="utf-8")
    shape = {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "seq_length": 64, "factory": "model.py:build_once"}
    job = {
        "model": shape,
        "data": {"path": str(folder / "corpus.txt")},
        "global_batch_size": 8,
        "steps": 6,
        "device": "cpu",
        "compute": {"flops_per_s": 1.0e10},
        "parallel": {"pp": 2, "dp": 1, "tp": 1, "micro_batch_size": 2},
        "checkpoint": {"path": str(folder / "saved"), "every_steps": 1, "keep_last": 6},
        "launch": {"environment": {"PYTHONPATH": str(OWN_MODEL.parent)}},
        **changes,
    }
    inventory, plan = folder / "inventory.json", folder / "plan.json"
    for arguments in (
        ("probe", str(site.hosts_yaml), "-o", str(inventory)),
        ("plan", str(site.write_job("job", job)), "-i", str(inventory), "-o", str(plan)),
    ):
        subprocess.run(site.command(*arguments), check=True, capture_output=True)
    return plan


def losses(site: Site, plan: Path, runs: Path, *options: str) -> dict[int, float]:
    """By step of a run that is done."""
    command = site.command("launch", str(plan), "--runs", str(runs), *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    lines = (only_run(runs) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {step["step"]: step["loss"] for step in map(json.loads, lines)}


@pytest.mark.process
def test_a_run_goes_back_also_where_its_first_start_fails(tmp_path: Path) -> None:
    site = local_site(tmp_path)
    plan = plan_saving_every_step(site, tmp_path)
    first = losses(site, plan, tmp_path / "first")
    assert list(first) == list(range(6))

    (tmp_path / "fails").touch()
    again = losses(site, plan, tmp_path / "again", "--resume-step", "2", "--restarts", "1")

    assert read_run(only_run(tmp_path / "again")).attempt == 1
    assert again == {step: first[step] for step in range(2, 6)}
    assert (tmp_path / "saved" / "latest").read_text() == "step-00000006\n"


@pytest.mark.process
def test_going_back_is_refused_where_nothing_is_saved(command: Command, tmp_path: Path) -> None:
    plan = plan_saving_every_step(local_site(tmp_path), tmp_path, checkpoint=None)
    done = command("launch", str(plan), "--resume-step", "2", "--dry-run")
    assert done.code == 2
    assert "--resume: the job saves no checkpoints" in done.stderr
