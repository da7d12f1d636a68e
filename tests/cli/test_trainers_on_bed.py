"""Unchanged scripts under a plan on the bed: losses as by bare torchrun, every group's sockets on its own network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from holmes_core.records.run import Run
from holmes_core.records.trainer_settings import TrainerName
from tests.cli.test_three_commands import MODEL, holmes, inventory, nothing_is_left
from tests.seeds import all_but
from tests.testbed.launch_ends import Ending, Way, end_so, of_trainer, trainer_endings
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, bed_site, only_run
from tests.testbed.trainer_scripts import DDP, HF_TRAINER, HSDP, MEGATRON_CORE

pytestmark = NEEDS_BED


@dataclass(frozen=True)
class Trained:
    """A script, the degrees fixed for it, and its arguments: under a plan, and those that the plan's values make."""

    script: str
    engine: TrainerName
    parallel: dict[str, int]
    words: tuple[str, ...] = ()
    bare_words: tuple[str, ...] = ()
    has_late_group: bool = True  # made after training began
    ranks_per_host: int = 1
    step_pattern: str | None = None  # where it does not print steps as its engine does


TRAINED = {
    "ddp": Trained(DDP, "torch", {"tp": 1, "pp": 1, "dp": 4}),
    "hsdp": Trained(
        HSDP, "torch", {"tp": 1, "pp": 1, "dp": 4, "zero": 3}, ("{dp_replicate}", "{dp_shard}"), ("2", "2")
    ),
    "transformers": Trained(HF_TRAINER, "accelerate", {"dp": 4, "zero": 1}, has_late_group=False),
    "megatron-core": Trained(
        MEGATRON_CORE,
        "megatron",
        {"tp": 2, "pp": 1, "dp": 4},
        # Named, so that no others are appended: it updates in one ring, and takes no instances of an optimizer.
        words=("--tensor-model-parallel-size", "{tp}", "--pipeline-model-parallel-size", "{pp}"),
        bare_words=("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "1"),
        ranks_per_host=2,
        step_pattern=r"step (?P<step>\d+) loss (?P<loss>\S+)",
    ),
}

# In test_launch_ends.py for the bundled runtime, where "controller killed" is exhaustive, too.
COVERED = ("Ctrl-C", "rank killed", "torchrun killed", "controller killed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with bed_site(tmp_path_factory.mktemp("site")) as site:
        inventory(site)
        yield site


def plan_of_script(site: Site, folder: Path, trained: Trained) -> Path:
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(trained.script, encoding="utf-8")
    job = {
        "model": MODEL,
        "steps": 5,
        "global_batch_size": 64,
        "device": "cpu",
        "compute": {"flops_per_s": 1e10},
        "parallel": trained.parallel,
        "slots_per_host": trained.ranks_per_host,
        "trainer": {
            "engine": trained.engine,
            "command": ["python", "train.py", *trained.words],
            "step_pattern": trained.step_pattern,
        },
        # By default one thread a rank where a host has several, as torchrun sets it: other threads add in other orders.
        "launch": {"code": "src", "environment": {"OMP_NUM_THREADS": "1"}},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    done = holmes(site, "plan", str(folder / "job.yaml"), "-i", str(inventory(site)), "-o", str(folder / "plan.json"))
    assert done.returncode == 0, done.stderr
    return folder / "plan.json"


@pytest.mark.parametrize("ending", all_but(COVERED, trainer_endings()))
def test_command_ends_like_the_bundled_runtime(site: Site, tmp_path: Path, ending: Ending) -> None:
    assert end_so(Way(site), of_trainer(ending, tmp_path), tmp_path, inventory(site), tmp_path) == []


def losses(text: str) -> list[str]:
    """The losses of all steps, and the digest of the last weights where the script prints one."""
    return re.findall(r"(?:step \d+ loss|'loss':|weights) (\S+)", text)


def made_groups(run: Path) -> list[dict[str, Any]]:
    """Return the record of each group, by the first of its members."""
    events = map(json.loads, (run / "events.jsonl").read_text(encoding="utf-8").splitlines())
    return [event for event in events if event["event"] == "group"]


@pytest.mark.parametrize("name", all_but(["ddp", "transformers", "megatron-core"], TRAINED))
def test_script_trains_as_by_bare_torchrun_with_each_group_on_its_network(
    name: str, site: Site, tmp_path: Path
) -> None:
    assert site.bed is not None
    trained = TRAINED[name]
    path = plan_of_script(site, tmp_path, trained)
    done = holmes(site, "launch", str(path), "--runs", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    plan, folder = read_file(Plan, path), only_run(tmp_path / "runs")

    script = str(tmp_path / "src" / "train.py")
    words = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(plan.world_size),
        script,
        *trained.bare_words,
    ]
    bare = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=600, check=True)
    first = plan.ranks[0]
    ours = losses((folder / "logs" / f"{first.host}-rank0.log").read_text(encoding="utf-8"))
    assert ours == losses(bare.stdout)
    assert len(ours) == 5 + ours[0].startswith("'")  # of transformers the digest, as it prints few digits

    clusters = {rank.rank: rank.cluster for rank in plan.ranks}
    nodes = {node.host: node for node in plan.nodes}
    groups = made_groups(folder)
    members = {tuple(group["ranks"]) for group in groups}
    assert members >= {group.ranks for group in plan.groups}
    for group in groups:
        inside = len({clusters[rank] for rank in group["ranks"]}) == 1
        node = nodes[plan.ranks[group["rank"]].host]
        assert node.fabric is not None
        across = "shared", node.shared_netdev
        expected = (node.fabric.network, node.fabric.netdev) if inside else across
        alone = len({plan.ranks[rank].host for rank in group["ranks"]}) == 1
        assert (group["network"], group["interface"]) == ((None, None) if alone else expected), group
        assert group["others"] == [], group
    assert (0, plan.world_size - 1) in members or not trained.has_late_group
    run = read_file(Run, folder / "run.json")
    assert sum(each.count for each in run.groups) == len(groups)
    assert run.traffic
    assert all(each.sent_bytes is not None for each in run.traffic)
    assert nothing_is_left(site.bed)
