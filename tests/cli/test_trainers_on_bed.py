"""Unchanged scripts under a plan on the bed: losses as by bare torchrun, every group's sockets on its own network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from holmes_core.records.run import Run
from tests.cli.test_three_commands import MODEL, holmes, inventory, nothing_is_left
from tests.testbed.launch_ends import Ending, Way, end_so, of_trainer, trainer_endings
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, bed_site, only_run

pytestmark = NEEDS_BED

DDP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(64, 8)))
"""
# Shards inside a cluster, replicas across: as FSDP2 of torch documents it, on a mesh of two dimensions.
HSDP = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
sizes = int(sys.argv[1]), int(sys.argv[2])
mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 8))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
"""
STEPS = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(1, 6):
    inputs = torch.randn(16, 64, generator=generator)
    targets = torch.randint(0, 8, (16,), generator=generator)
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        print(f"step {step} loss {mean.item() / dist.get_world_size():.17g}", flush=True)
late = dist.new_group([0, dist.get_world_size() - 1])
dist.barrier()
dist.destroy_process_group()
"""
SCRIPTS = {
    "ddp": (DDP + STEPS, {"dp": 4}, []),
    "hsdp": (HSDP + STEPS, {"dp": 4, "zero": 3}, ["{dp_replicate}", "{dp_shard}"]),
}
WORDS = {"ddp": [], "hsdp": ["2", "2"]}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with bed_site(tmp_path_factory.mktemp("site")) as site:
        inventory(site)
        yield site


def planned(site: Site, folder: Path, name: str) -> Path:
    script, parallel, words = SCRIPTS[name]
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(script, encoding="utf-8")
    job = {
        "model": MODEL,
        "steps": 5,
        "global_batch_size": 64,
        "device": "cpu",
        "compute": {"flops_per_s": 1e10},
        "parallel": {"tp": 1, "pp": 1, **parallel},
        "trainer": {"engine": "torch", "command": ["python", "train.py", *words]},
        "launch": {"code": "src"},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    done = holmes(site, "plan", str(folder / "job.yaml"), "-i", str(inventory(site)), "-o", str(folder / "plan.json"))
    assert done.returncode == 0, done.stderr
    return folder / "plan.json"


@pytest.mark.parametrize("ending", trainer_endings(), ids=lambda ending: ending.name)
def test_command_ends_like_the_bundled_runtime(site: Site, tmp_path: Path, ending: Ending) -> None:
    assert end_so(Way(site), of_trainer(ending, tmp_path), tmp_path, inventory(site), tmp_path) == []


def losses(text: str) -> list[str]:
    return re.findall(r"step \d+ loss (\S+)", text)


def made_groups(run: Path) -> list[dict[str, Any]]:
    """The groups that the first of their members told of."""
    events = map(json.loads, (run / "events.jsonl").read_text(encoding="utf-8").splitlines())
    return [event for event in events if event["event"] == "group"]


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_script_trains_as_by_bare_torchrun_with_each_group_on_its_network(
    name: str, site: Site, tmp_path: Path
) -> None:
    assert site.bed is not None
    path = planned(site, tmp_path, name)
    done = holmes(site, "launch", str(path), "--runs", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    plan, folder = read_file(Plan, path), only_run(tmp_path / "runs")

    script = str(tmp_path / "src" / "train.py")
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", script, *WORDS[name]]
    bare = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=600, check=True)
    first = plan.ranks[0]
    ours = losses((folder / "logs" / f"{first.host}-rank0.log").read_text(encoding="utf-8"))
    assert ours == losses(bare.stdout)
    assert len(ours) == 5

    clusters = {rank.rank: rank.cluster for rank in plan.ranks}
    nodes = {node.host: node for node in plan.nodes}
    groups = made_groups(folder)
    assert {tuple(group["ranks"]) for group in groups} >= {group.ranks for group in plan.groups}
    for group in groups:
        inside = len({clusters[rank] for rank in group["ranks"]}) == 1
        node = nodes[plan.ranks[group["rank"]].host]
        assert node.fabric is not None
        assert group["network"] == (node.fabric.network if inside else "shared"), group
        assert group["interface"] == (node.fabric.netdev if inside else node.shared_netdev), group
        assert group["others"] == [], group
    assert (0, 3) in {tuple(group["ranks"]) for group in groups}  # made after training began
    run = read_file(Run, folder / "run.json")
    assert sum(each.count for each in run.groups) == len(groups)
    assert nothing_is_left(site.bed)
