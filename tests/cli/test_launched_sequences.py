"""Ranks that share sequences are planned for the bundled trainer, and trained by `holmes launch` like whole ones."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from tests.testbed.rehearsal import local_site, only_run, standard_library_corpus

MODEL = {"family": "llama", "num_layers": 4, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "seq_length": 64}


def trained(folder: Path, saved: Path, steps: int, parallel: dict[str, Any], *flags: str) -> tuple[Plan, list[float]]:
    """The plan of a job with these degrees and the losses of its launch, which may resume what was saved."""
    folder.mkdir()
    site = local_site(folder)
    job = {
        "model": MODEL,
        "data": standard_library_corpus(),
        "global_batch_size": 8,
        "steps": steps,
        "device": "cpu",
        "compute": {"flops_per_s": 1e10},
        "parallel": parallel | {"micro_batch_size": 1},
        "optimizer": {"learning_rate": 1e-3, "decay": "constant"},
        "checkpoint": {"path": str(saved), "every_steps": 10},
    }
    path = site.write_job("job", job)
    files = [str(folder / name) for name in ("inventory.json", "plan.json")]
    for words in (
        site.command("probe", str(site.hosts_yaml), "-o", files[0]),
        site.command("plan", str(path), "-i", files[0], "-o", files[1]),
        site.command("launch", files[1], "--runs", str(folder / "runs"), *flags),
    ):
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    lines = (only_run(folder / "runs") / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [step["loss"] for step in map(json.loads, lines) if step.get("loss") is not None]
    return read_file(Plan, Path(files[1])), losses


@pytest.mark.process
def test_a_run_that_shares_sequences_goes_on_without(tmp_path: Path) -> None:
    plan, shared = trained(tmp_path / "shared", tmp_path / "saved", 10, {"pp": 2, "dp": 1, "cp": 2})
    _, resumed = trained(tmp_path / "resumed", tmp_path / "saved", 20, {"pp": 1, "dp": 4}, "--resume")

    assert (plan.dp, plan.engine_dp, plan.job.cp) == (2, 1, 2)
    groups = [group for group in plan.groups if group.axis == "cp"]
    assert len(groups) == 2
    assert all(len({plan.ranks[rank].cluster for rank in group.ranks}) == 1 for group in groups)
    assert (len(shared), len(resumed)) == (10, 10)
    assert shared[0] > shared[-1] > resumed[-1]
    assert resumed[0] < sum(shared) / 10
