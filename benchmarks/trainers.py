"""A script of HSDP under a plan against the same script by torchrun, on the bed: 2 Gbit/s inside, 100 Mbit/s across.

torchrun is typed by hand on all four hosts at once, which alternate between the clusters as in a list sorted by name of
rack; Gloo is on the interface that all hosts share. Under the plan shards are inside clusters, on their own fabric.
Printed: how many times as fast a step is, and the seconds to the first step against torchrun in the plan's order.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figure import print_figure
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from tests.testbed.rehearsal import Site, bed_site

FAST_MBPS, SLOW_MBPS = 2000, 100
STEPS, REPETITIONS = 6, 3
USUAL, PLANNED = ("a1", "b1", "a2", "b2"), ("a1", "a2", "b1", "b2")
SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.set_num_threads(1)
mesh = init_device_mesh("cpu", (int(sys.argv[1]), int(sys.argv[2])), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(1, int(sys.argv[3]) + 1):
    began = time.monotonic()
    loss = model(torch.randn(4, 512)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.6f} seconds {time.monotonic() - began:.4f}", flush=True)
dist.destroy_process_group()
os._exit(0)  # fully_shard keeps Gloo's threads, and one that lets go of a tensor while Python ends aborts the process
"""


def main() -> None:
    """Both ways in turns, on one bed."""
    with tempfile.TemporaryDirectory() as name, bed_site(Path(name), FAST_MBPS, SLOW_MBPS) as site:
        script = site.folder / "script.py"
        script.write_text(SCRIPT, encoding="utf-8")
        plan = planned(site, script)
        launched, usual, by_hand = [], [], []
        for repetition in range(REPETITIONS):
            launched.append(by_launch(site, plan, repetition))
            usual.append(by_torchrun(site, script, plan, USUAL))
            by_hand.append(by_torchrun(site, script, plan, PLANNED))
        for way, runs in {
            "launch": launched,
            "torchrun, usual order": usual,
            "torchrun, planned order": by_hand,
        }.items():
            steps, firsts = [step_s for _, step_s in runs], [first_s for first_s, _ in runs]
            print(f"{way}: {statistics.median(steps):.3f} s a step, {statistics.median(firsts):.2f} s to the first")
        print_figure("trainers.over_usual_order", _median(usual, 1) / _median(launched, 1), "x")
        print_figure("trainers.over_torchrun", _median(launched, 0) / _median(by_hand, 0), "x")


def _median(runs: Sequence[tuple[float, float]], column: int) -> float:
    return statistics.median(run[column] for run in runs)


def planned(site: Site, script: Path) -> Path:
    """The plan of the script, on all four hosts."""
    job = {
        "model": {"num_layers": 4, "hidden_size": 256, "num_heads": 2, "seq_length": 32},
        "steps": STEPS,
        "global_batch_size": 16,
        "device": "cpu",
        "compute": {"flops_per_s": 1e10},
        "parallel": {"tp": 1, "pp": 1, "dp": 4, "zero": 3},
        "trainer": {
            "engine": "torch",
            "command": ["python", str(script), "{dp_replicate}", "{dp_shard}", str(STEPS)],
            "step_pattern": r"step (?P<step>\d+) loss (?P<loss>\S+) seconds (?P<seconds>\S+)",
        },
    }
    inventory, plan = str(site.folder / "inventory.json"), site.folder / "plan.json"
    for command in (
        site.command("probe", str(site.hosts_yaml), "-o", inventory),
        site.command("plan", str(site.write_job("job", job)), "-i", inventory, "-o", str(plan)),
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return plan


def by_launch(site: Site, plan: Path, repetition: int) -> tuple[float, float]:
    """Seconds to the first step, and of a step."""
    command = site.command("launch", str(plan), "--runs", str(site.folder / f"runs-{repetition}"))
    return _timed([subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)])


def by_torchrun(site: Site, script: Path, plan: Path, hosts: Sequence[str]) -> tuple[float, float]:
    """The same by torchrun on each of `hosts`, in that order of ranks, on the network that all share."""
    assert site.bed is not None
    nodes = {node.host: node for node in read_file(Plan, plan).nodes}
    first = nodes[hosts[0]].shared_address
    processes = []
    for node_rank, host in enumerate(hosts):
        words = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(hosts)), "--nproc-per-node", "1"),
            *("--node-rank", str(node_rank), "--master-addr", first, "--master-port", "29555"),
            *(str(script), "2", "2", str(STEPS)),
        ]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": nodes[host].shared_netdev}
        processes.append(
            subprocess.Popen(
                site.bed.on_host_command(host, words),
                stdout=subprocess.PIPE if node_rank == 0 else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        )
    return _timed(processes)


def _timed(processes: Sequence[subprocess.Popen[str]]) -> tuple[float, float]:
    """Seconds until the first process prints its first step, and the median of the later steps' own seconds."""
    started_s, first_s, steps, said = time.perf_counter(), None, list[float](), ""
    assert processes[0].stdout is not None
    for line in processes[0].stdout:
        said += line
        found = re.search(r"step \d+ loss \S+ seconds (\S+)", line)
        if found:
            first_s = first_s or time.perf_counter() - started_s
            steps.append(float(found[1]))
    for process in processes:
        process.wait()
    if first_s is None or any(process.returncode for process in processes):
        raise SystemExit(f"it ended with {[process.returncode for process in processes]}:\n{said[-3000:]}")
    return first_s, statistics.median(steps[1:])


if __name__ == "__main__":
    main()
