"""Islands on the bed: clusters over a narrow wire, one of which loses its network and comes back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.journal.run_folder import read_run
from tests.builders.local_runs import ROOT
from tests.eventually import eventually
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rank_processes import our_pids
from tests.testbed.rehearsal import Site, bed_site, only_run, standard_library_corpus

pytestmark = NEEDS_BED

MODEL = {"num_layers": 4, "hidden_size": 64, "num_heads": 2, "seq_length": 32}
JOB = {
    "model": MODEL,
    "data": standard_library_corpus(),
    "global_batch_size": 8,
    "device": "cpu",
    "compute": {"emulate": {"forward_s_per_layer": 0.005, "backward_s_per_layer": 0.01}},
    "parallel": {"micro_batch_size": 1},
    "timeout_s": 60,
    "islands": {"inner_steps": 20, "codec": "int4", "fragments": 2, "delay_steps": 4, "grace_s": 3.0},
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with bed_site(tmp_path, slow_mbps=2) as site:
        yield site


def holmes(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(site.command(*arguments), capture_output=True, text=True, timeout=300, check=False)


def plan_islands_on_bed(site: Site, steps: int, job: dict[str, Any] = JOB) -> Path:
    inventory, plan = site.folder / "inventory.json", site.folder / "plan.json"
    job_yaml = site.write_job("job", {**job, "steps": steps})
    for words in (
        ("probe", str(site.hosts_yaml), "-o", str(inventory)),
        ("plan", str(job_yaml), "-i", str(inventory), "-o", str(plan)),
    ):
        done = holmes(site, *words)
        assert done.returncode == 0, done.stderr
    assert json.loads(plan.read_text(encoding="utf-8"))["kind"] == "islands_plan"
    return plan


def exchanges(island: Path) -> list[dict[str, Any]]:
    lines = (island / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "exchange"]


def steps_done(island: Path) -> int:
    metrics = island / "metrics.jsonl"
    return len(metrics.read_text(encoding="utf-8").splitlines()) if metrics.exists() else 0


@pytest.mark.exhaustive
def test_clusters_train_as_islands_over_a_narrow_wire(site: Site) -> None:
    done = holmes(site, "launch", str(plan_islands_on_bed(site, 40)), "--runs", str(site.folder / "runs"))
    assert done.returncode == 0, done.stderr
    folder = only_run(site.folder / "runs")
    digests = [[(each["exchange"], each["digest"]) for each in exchanges(folder / f"island-{n}")] for n in (0, 1)]
    assert digests[0] == digests[1] != []
    assert {read_run(folder / f"island-{number}").state for number in (0, 1)} == {"done"}


@pytest.mark.exhaustive
def test_clusters_train_a_script_of_torch_as_islands_over_a_narrow_wire(site: Site) -> None:
    example = ROOT / "examples" / "own-trainer-islands"
    shutil.copytree(example / "src", site.folder / "src")
    job = yaml.safe_load((example / "job.yaml").read_text(encoding="utf-8"))
    done = holmes(site, "launch", str(plan_islands_on_bed(site, 16, job)), "--runs", str(site.folder / "runs"))
    assert done.returncode == 0, done.stderr
    folder = only_run(site.folder / "runs")
    digests = [[(each["exchange"], each["digest"]) for each in exchanges(folder / f"island-{n}")] for n in (0, 1)]
    assert digests[0] == digests[1]
    assert [exchange for exchange, _ in digests[0]] == [0, 1, 2, 3]


def test_a_cluster_that_loses_its_network_comes_back_and_the_other_goes_on(site: Site) -> None:
    bed, runs = site.bed, site.folder / "runs"
    assert bed is not None
    words = site.command("launch", str(plan_islands_on_bed(site, 100000)), "--runs", str(runs))
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert eventually(lambda: any(steps_done(each) > 25 for each in runs.glob("*/island-1")))
            kept, lost = (only_run(runs) / f"island-{number}" for number in (0, 1))
            gone = [host for host in bed.hosts if host.name in lost_hosts(lost)]
            for host in gone:
                bed.set_link(host.name, host.slow_interface, up=False)
                for pid in our_pids(bed, host.name):
                    os.kill(pid, signal.SIGKILL)
            assert eventually(lambda: "island 1: lost" in (lost.parent / "events.jsonl").read_text(encoding="utf-8"))
            alone = steps_done(kept)
            assert eventually(lambda: steps_done(kept) > alone + 30)
            for host in gone:
                bed.set_link(host.name, host.slow_interface, up=True)
            assert eventually(lambda: any(each["has_joined"] for each in exchanges(lost)))
            assert (read_run(kept).attempt, read_run(kept).state) == (0, "running")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=600) == 130


def lost_hosts(island: Path) -> list[str]:
    plan = json.loads((island / "plan.json").read_text(encoding="utf-8"))
    return [node["host"] for node in plan["nodes"]]
