"""Examples to fine-tune on are prepared, planned and trained by the three commands a user types."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.testbed.rehearsal import local_site, only_run


@pytest.mark.process
def test_packed_examples_are_trained_as_they_are_read_and_else_refused(tmp_path: Path) -> None:
    site = local_site(tmp_path)
    lines = [{"prompt": f"{number} + 1 = ", "completion": str(number + 1)} for number in range(400)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shape = {"family": "llama", "num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 64}
    job = {
        "model": {**shape, "vocab_size": 256},
        "data": {"path": str(tmp_path / "sums.bin"), "documents": "separate", "validation_fraction": 0.1},
        "evaluation": {"every_steps": 30},
        "global_batch_size": 8,
        "steps": 30,
        "device": "cpu",
        "compute": {"flops_per_s": 1e10},
        "parallel": {"pp": 2, "dp": 2, "micro_batch_size": 1},
        "optimizer": {"learning_rate": 5e-3},
    }
    files = [str(tmp_path / name) for name in ("inventory.json", "plan.json", "joined.json")]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(site.command(*words), capture_output=True, text=True, timeout=600, check=False)

    for words in (
        ["data", str(tmp_path / "sums.jsonl"), "-o", str(tmp_path / "sums.bin"), "--seq-length", "64"],
        ["probe", str(site.hosts_yaml), "-o", files[0]],
        ["plan", str(site.write_job("job", job)), "-i", files[0], "-o", files[1]],
        ["launch", files[1], "--runs", str(tmp_path / "runs")],
    ):
        done = run(*words)
        assert done.returncode == 0, done.stderr

    metrics = (only_run(tmp_path / "runs") / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in metrics]
    losses = [step["loss"] for step in steps if step.get("loss") is not None]
    assert losses[0] > 5
    assert losses[-1] < 2.5  # completions alone are digits and an end: ln(11) is 2.4
    assert [step["eval_loss"] < 3 for step in steps if step.get("eval_loss") is not None] == [True]

    job["data"] = {"path": str(tmp_path / "sums.bin"), "validation_fraction": 0.1}
    assert run("plan", str(site.write_job("joined", job)), "-i", files[0], "-o", files[2]).returncode == 0
    refused = run("launch", files[2], "--runs", str(tmp_path / "refused"))
    assert refused.returncode == 1  # of what hosts have
    assert "set `documents: separate` in `data`" in " ".join(refused.stderr.split())
