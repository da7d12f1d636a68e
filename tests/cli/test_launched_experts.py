"""A mixture of experts whose ranks share sequences, too, is planned for the bundled trainer, launched, and exported."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from holmes_runtime.node.published_files.architectures import read_shape
from tests.testbed.rehearsal import local_site, only_run, standard_library_corpus


@pytest.mark.process
def test_a_mixture_of_experts_on_shared_sequences_is_planned_trained_and_exported(tmp_path: Path) -> None:
    site = local_site(tmp_path)
    shape = {"family": "llama", "num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 32}
    job = {
        "model": {**shape, "experts": 4, "experts_per_token": 2, "expert_ffn": 24},
        "data": standard_library_corpus(),
        "global_batch_size": 8,
        "steps": 20,
        "device": "cpu",
        "compute": {"flops_per_s": 1e10},
        "parallel": {"pp": 2, "dp": 1, "cp": 2, "ep": 2, "micro_batch_size": 1},
        "optimizer": {"learning_rate": 3e-3, "router_balance": 0.01},
        "checkpoint": {"path": str(tmp_path / "saved"), "every_steps": 20},
    }
    path = site.write_job("job", job)
    files = [str(tmp_path / name) for name in ("inventory.json", "plan.json")]
    for words in (
        site.command("probe", str(site.hosts_yaml), "-o", files[0]),
        site.command("plan", str(path), "-i", files[0], "-o", files[1]),
        site.command("launch", files[1], "--runs", str(tmp_path / "runs")),
        site.command("checkpoint", "export", str(tmp_path / "saved"), "-o", str(tmp_path / "model")),
    ):
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr

    plan = read_file(Plan, Path(files[1]))
    assert (plan.tp, plan.pp, plan.dp, plan.engine_dp, plan.job.cp, plan.job.ep) == (1, 2, 2, 1, 2, 2)
    for axis in ("cp", "ep"):
        groups = [group.ranks for group in plan.groups if group.axis == axis]
        assert groups == [(0, 1), (2, 3)]
        assert all(len({plan.ranks[rank].cluster for rank in group}) == 1 for group in groups)
    lines = (only_run(tmp_path / "runs") / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [step["loss"] for step in map(json.loads, lines) if step.get("loss") is not None]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 0.5
    assert read_shape(tmp_path / "model", 32).experts == 4
