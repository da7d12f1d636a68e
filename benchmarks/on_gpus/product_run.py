"""A job of this machine alone by `holmes probe`, `plan` and `launch`: its predictions and its measurements."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.on_gpus.report import Failed
from holmes_cli.demo.demo_run import only_run
from holmes_cli.demo.demo_site import DemoSite
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file

MAX_SECONDS = 3600.0  # of one command


@dataclass(frozen=True)
class ProductRun:
    """A finished run: the plan, and the measurements of every step. Seconds and memory are the slowest rank's."""

    plan: Plan
    losses: tuple[float, ...]
    steps_s: tuple[float, ...]
    tflops_per_s: float
    mfu: float
    memory_bytes: int

    @property
    def step_s(self) -> float:
        """The median of the second half, when nothing is compiled any more."""
        return statistics.median(self.steps_s[len(self.steps_s) // 2 :])


def largest_difference(losses: Sequence[float], others: Sequence[float]) -> float:
    """Of two runs, relative to the second, between losses of the same step; nan if any is."""
    found = [abs(one - other) / abs(other) for one, other in zip(losses, others, strict=True)]
    return max(found, key=lambda each: math.inf if math.isnan(each) else each)


def probe_here(folder: Path) -> Path:
    """Probe this machine, and return the path of its inventory. Raises Failed with the last lines of the probe."""
    folder.mkdir(parents=True, exist_ok=True)
    hosts = {"transport": "local", "python": sys.executable, "speeds_gbps": {"lo": 20}, "hosts": [{"name": "here"}]}
    hosts_yaml, inventory = folder / "hosts.yaml", folder / "inventory.json"
    hosts_yaml.write_text(yaml.safe_dump(hosts, sort_keys=False), encoding="utf-8")
    output = last_words(
        DemoSite(folder, hosts_yaml).command("probe", str(hosts_yaml), "-o", str(inventory)), may_say_no=True
    )
    if not inventory.exists():
        raise Failed(f"holmes probe: {output}")
    return inventory


def run_product(folder: Path, inventory: Path, job: dict[str, Any]) -> ProductRun:
    """Train `job` in `folder`, which is made. Raises Failed with the last lines of the command that failed."""
    folder.mkdir(parents=True)
    site = DemoSite(folder, inventory.with_name("hosts.yaml"))
    plan = folder / "plan.json"
    last_words(site.command("plan", str(site.write_job("job", job)), "-i", str(inventory), "-o", str(plan)))
    last_words(site.command("launch", str(plan), "--runs", str(folder / "runs")))
    return read_product(only_run(folder / "runs"))


def read_product(run: Path) -> ProductRun:
    """What the folder of a finished run says."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    second_half = lines[len(lines) // 2 :]
    return ProductRun(
        plan=read_file(Plan, run / "plan.json"),
        losses=tuple(line["loss"] for line in lines),
        steps_s=tuple(line["step_s"] for line in lines),
        tflops_per_s=statistics.median(line["tflops_per_s"] for line in second_half),
        mfu=statistics.median(line["mfu"] for line in second_half),
        memory_bytes=max(line["memory_bytes"] for line in lines),
    )


def last_words(command: list[str], may_say_no: bool = False) -> str:
    """What `command` printed. Raises Failed with its last lines if its exit code is not 0, or 1 where that may be."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command[1:])}: not done after {MAX_SECONDS:g} s") from None
    if done.returncode > may_say_no or done.returncode < 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-12:]
        raise Failed(f"{' '.join(command[1:])}: exit code {done.returncode}: " + " / ".join(said))
    return done.stdout
