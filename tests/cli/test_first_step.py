"""A run whose ranks never get through their first step is ended in time, and says what each of them was doing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher.journal.run_folder import read_run
from launcher.supervise.failure import first_cause
from tests.testbed.rehearsal import Site, local_site, only_run

MODEL = """
import time

def build_hang(stage_layers, job):
    while stage_layers.start in {stages}:
        time.sleep(1)
    from own_model import build
    return build(stage_layers, job)
"""
OWN_MODEL = Path(__file__).parents[2] / "examples" / "own-model-file" / "own_model.py"


def failed_run(site: Site, folder: Path, stages: str) -> tuple[str, Path]:
    """What `holmes launch` says of a model whose stages that begin with those layers are never built, and its run."""
    (site.folder / "hang.py").write_text(MODEL.format(stages=stages), encoding="utf-8")
    (site.folder / "corpus.txt").write_text("To be, or not to be. " * 2000, encoding="utf-8")
    shape = {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "seq_length": 64, "factory": "hang.py:build_hang"}
    job = {
        "model": shape,
        "data": {"path": str(site.folder / "corpus.txt")},
        "global_batch_size": 8,
        "steps": 3,
        "device": "cpu",
        "timeout_s": 45,  # ten times what ranks take to meet
        "compute": {"flops_per_s": 1.0e10},
        "parallel": {"pp": 2, "dp": 1, "tp": 1, "micro_batch_size": 2},
        "launch": {"environment": {"PYTHONPATH": str(OWN_MODEL.parent)}},
    }
    path, inventory, plan = site.write_job("hang", job), folder / "inventory.json", folder / "plan.json"
    for arguments in (
        ("probe", str(site.hosts_yaml), "-o", str(inventory)),
        ("plan", str(path), "-i", str(inventory), "-o", str(plan)),
    ):
        subprocess.run(site.command(*arguments), check=True, capture_output=True)
    launch = site.command("launch", str(plan), "--runs", str(folder / "runs"))
    done = subprocess.run(launch, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr, only_run(folder / "runs")


@pytest.mark.process
def test_a_model_that_is_never_built_ends_the_run_and_no_rank_is_blamed(tmp_path: Path) -> None:
    said, folder = failed_run(local_site(tmp_path), tmp_path, stages="{0, 1, 2, 3}")
    assert "the run was ended, and no rank is known to be at fault" in said
    failure = first_cause(read_run(folder).failures)  # peers that wait give up at about the same time
    assert (failure.host, failure.rank) == (None, None)
    assert failure.message.endswith(": building the model")
    assert "(timeout_s in job.yaml)" in failure.message


@pytest.mark.exhaustive  # the verdict of test_hang.py, as ranks that hang later have theirs in test_right_culprit.py
@pytest.mark.process
def test_the_one_rank_that_never_builds_its_stage_is_named(tmp_path: Path) -> None:
    said, folder = failed_run(local_site(tmp_path), tmp_path, stages="{0}")
    failure = first_cause(read_run(folder).failures)
    assert failure.rank == 0
    assert "rank 0 holds up the others: it is still building the model" in said
