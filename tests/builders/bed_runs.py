"""Runs on the bed that save: the plan of one job, its launch, and its losses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.testbed.rehearsal import Site, standard_library_corpus


def claim_cores(site: Site) -> None:
    """Has each host of the bed say that it has cores for all, so that plans use all of them as they would machines."""
    for host in site.bed.hosts if site.bed is not None else ():
        tool = host.tools / "nproc"
        tool.write_text("#!/bin/sh\necho 8\n", encoding="utf-8")
        tool.chmod(0o755)


def plan_that_saves(site: Site, folder: Path, **changes: Any) -> Path:
    """The plan of a job that saves in `folder`, from an inventory that all plans of the site share."""
    inventory = site.folder / "inventory.json"
    if not inventory.exists():
        claim_cores(site)
        probe = site.command("probe", str(site.hosts_yaml), "-o", str(inventory))
        subprocess.run(probe, check=True, capture_output=True, timeout=600)
    job = {
        "model": {"num_layers": 6, "hidden_size": 32, "num_heads": 2, "seq_length": 32},
        "data": standard_library_corpus(),
        "global_batch_size": 12,
        "steps": 40,
        "device": "cpu",
        "compute": {"flops_per_s": 4e9},
        "checkpoint": {"path": str(folder / "checkpoints"), "every_steps": 10, "keep_last": 10},
        "timeout_s": 60,
        **changes,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    plan = folder / "plan.json"
    command = site.command("plan", str(folder / "job.yaml"), "-i", str(inventory), "-o", str(plan))
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return plan


def losses_from(run: Path, after: int) -> dict[int, float]:
    """The last loss written for each step from `after` on."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {step["step"]: step["loss"] for step in map(json.loads, lines) if step["step"] >= after}


def launched(site: Site, folder: Path, plan: Path, *options: str) -> subprocess.Popen[str]:
    command = site.command("launch", str(plan), "--runs", str(folder), *options)
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
