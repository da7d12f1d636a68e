"""Between clusters all is encrypted where hosts.yaml asks for it: who listens reads nothing, and nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_core.records.plan import TUNNEL_NETDEV
from tests.eventually import eventually
from tests.seeds import all_but
from tests.testbed.bed import Bed
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.packets import Listener, listening
from tests.testbed.rank_processes import agent_pids, rank_pids
from tests.testbed.rehearsal import Site, only_run, said_until, standard_library_corpus

MISSING = [tool for tool in ("wg", "wireguard-go") if shutil.which(tool) is None]
pytestmark = [
    *NEEDS_BED,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.timeout(600),
]
MARK = 0.8367169499397278
PATTERN = struct.pack("<f", MARK) * 16
MODEL = f"""
    import torch
    from torch import nn

    class Stage(nn.Module):
        def __init__(self, layers, shape):
            super().__init__()
            torch.manual_seed(layers.start)
            self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size) if layers.start == 0 else None
            self.layers = nn.ModuleList(nn.Linear(shape.hidden_size, shape.hidden_size) for _ in layers)
            is_last = layers.stop == shape.num_layers
            self.head = nn.Linear(shape.hidden_size, shape.vocab_size) if is_last else None

        def forward(self, inputs):
            hidden = inputs if self.embedding is None else self.embedding(inputs)
            for layer in self.layers:
                hidden = layer(hidden)
            if self.head is not None:
                return self.head(hidden)
            return torch.cat([hidden[..., :-16], torch.full_like(hidden[..., -16:], {MARK!r})], dim=-1)

    def build(layers, config):
        return Stage(layers, config.model)
"""
JOB: dict[str, Any] = {
    "model": {"num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 32},
    "data": standard_library_corpus(),
    "global_batch_size": 12,
    "steps": 8,
    "device": "cpu",
    "compute": {"flops_per_s": 1e10},
    "parallel": {"pp": 2, "dp": 2, "micro_batch_size": 1},
    "timeout_s": 60,
}


@pytest.fixture(scope="module")
def plans(site: Site) -> dict[str, Path]:
    """By what hosts.yaml asks for, the plan of one job, whose model sends the pattern between its stages."""
    (site.folder / "marked.py").write_text(textwrap.dedent(MODEL), encoding="utf-8")
    job = {**JOB, "model": {**JOB["model"], "factory": f"{site.folder}/marked.py:build"}}
    return {asked: plan_with_security(site, asked, job, asked) for asked in ("clear", "wireguard")}


def plan_with_security(site: Site, asked: str, job: dict[str, Any], name: str) -> Path:
    """Planned with that in hosts.yaml, and probed where it was not yet."""
    inventory, plan = site.folder / f"{asked}.inv.json", site.folder / f"{name}.plan.json"
    if not inventory.exists():
        hosts = {**yaml.safe_load(site.hosts_yaml.read_text()), "security": {"between_clusters": asked}}
        hosts_yaml = site.folder / f"{asked}.hosts.yaml"
        hosts_yaml.write_text(yaml.safe_dump(hosts), encoding="utf-8")
        probe = site.command("probe", str(hosts_yaml), "-o", str(inventory))
        subprocess.run(probe, check=True, capture_output=True)
    planning = site.command("plan", str(site.write_job(name, job)), "-i", str(inventory), "-o", str(plan))
    subprocess.run(planning, check=True, capture_output=True)
    return plan


def launch(site: Site, plan: Path, runs: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(site.command("launch", str(plan), "--runs", str(runs)), capture_output=True, text=True)


def losses(runs: Path) -> list[float]:
    lines = (only_run(runs) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


def tunnels(bed: Bed) -> list[str]:
    """The hosts that have the tunnel's interface."""
    show = ["ip", "link", "show", "dev", TUNNEL_NETDEV]
    shown = {host.name: subprocess.run(bed.on_host_command(host.name, show), capture_output=True) for host in bed.hosts}
    return [name for name, done in shown.items() if done.returncode == 0]


def test_who_listens_reads_activations_only_where_nothing_is_asked_for(
    site: Site, bed: Bed, plans: dict[str, Path], tmp_path: Path
) -> None:
    heard: dict[str, Listener] = {}
    for asked, plan in plans.items():
        with listening(bed.host("b1"), PATTERN) as heard[asked]:
            done = launch(site, plan, tmp_path / asked)
        assert done.returncode == 0, done.stderr
    clear, encrypted = heard["clear"], heard["wireguard"]
    assert clear.with_pattern > JOB["steps"]
    assert clear.tcp_between_hosts.total() > JOB["steps"]
    assert encrypted.frames > JOB["steps"]
    assert encrypted.with_pattern == 0
    assert not encrypted.tcp_between_hosts
    assert losses(tmp_path / "wireguard") == losses(tmp_path / "clear")
    assert len(losses(tmp_path / "clear")) == JOB["steps"]
    assert tunnels(bed) == []


def test_a_host_without_the_tools_refuses_the_launch_and_nothing_is_left(
    site: Site, bed: Bed, plans: dict[str, Path], tmp_path: Path
) -> None:
    tool = shutil.which("wg")
    assert tool is not None
    subprocess.run(bed.on_host_command("b1", ["mount", "--bind", "/dev/null", tool]), check=True)
    try:
        done = launch(site, plans["wireguard"], tmp_path)
    finally:
        subprocess.run(bed.on_host_command("b1", ["umount", tool]), check=True)
    assert done.returncode == 1
    assert "host b1: preflight check encryption failed: `wg` is not installed" in done.stderr
    assert "install the package wireguard-tools" in done.stderr
    assert "--force" not in done.stderr
    assert eventually(lambda: tunnels(bed) == [])
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def long(site: Site) -> Path:
    """The plan of a job that does not end by itself."""
    return plan_with_security(site, "wireguard", {**JOB, "steps": 100_000}, "long")


def stepping(site: Site, plan: Path, runs: Path) -> subprocess.Popen[str]:
    """A launch whose ranks train."""
    command = site.command("launch", str(plan), "--runs", str(runs))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said_until(process, "step 2/")
    return process


@pytest.mark.parametrize("survivor", all_but(["controller"], ["relay", "controller"]))
def test_a_killed_agent_leaves_no_tunnel(site: Site, bed: Bed, long: Path, tmp_path: Path, survivor: str) -> None:
    process = stepping(site, long, tmp_path)
    assert tunnels(bed) == [host.name for host in bed.hosts]
    relay, agent = agent_pids(bed, "b1")
    for pid in (agent,) if survivor == "relay" else (relay, agent):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode != 0
    assert eventually(lambda: tunnels(bed) == [])


@pytest.mark.exhaustive  # test_tunnels_on_bed.py has one that the next probe removes
def test_a_tunnel_that_all_who_knew_of_it_left_behind_is_removed_by_the_next_run(
    site: Site, bed: Bed, plans: dict[str, Path], long: Path, tmp_path: Path
) -> None:
    process = stepping(site, long, tmp_path / "killed")
    process.kill()
    process.communicate()
    for pid in [*agent_pids(bed, "b1"), *rank_pids(bed, "b1")]:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: tunnels(bed) == ["b1"])  # the others' agents miss their controller
    done = launch(site, plans["wireguard"], tmp_path / "next")
    assert done.returncode == 0, done.stderr
    assert tunnels(bed) == []
