"""Holmes' plan and runtime against the usual rank order and torch's own ways to train, over a slow link. Needs root.

Two clusters of two hosts, 2 Gbit/s inside, 20 to 500 Mbit/s across, on the bed of network namespaces; ten layers of
6 MB of gradients, 16 micro-batches a step. For times compute is emulated (a layer sleeps 8 ms forward, 16 ms backward),
so that steps depend on plan, runtime and network and not on how many cores there are; for losses and bytes it is real.
`--write-docs` puts the table into docs/runtime.md.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.doc_table import write_table
from benchmarks.figure import print_figure
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Order, Plan, SourceFile
from holmes_core.records.record_file import read_file
from launcher.prepare.prepare import run_config_of
from planner.make_plan import make_plan
from tests.testbed.bed import Bed

ROOT = Path(__file__).parent.parent

FAST_MBPS, SLOW_MBPS = 2000, (500, 100, 50, 20)
UNSHAPED_MBPS = 100_000  # more than this machine can move: no network to wait for
UNEVEN_MBPS, REAL_MBPS = 100, 500
TIMEOUT_S = 600.0
STEPS = 6  # the first is dropped
# What sends all gradients across takes up to a minute a step, and repeats to a percent: fewer steps say as much.
SLOW_STEPS = {500: STEPS, 100: 2, 50: 2, 20: 2}
REAL_STEPS = 3
LARGEST_LOSS_DIFFERENCE = 1e-4

HOLMES, USUAL, DDP, FSDP2, STOCK = "holmes", "usual", "ddp", "fsdp2", "stock-1f1b"
RIVALS = {USUAL: "over_usual_order", DDP: "over_ddp", FSDP2: "over_fsdp2", STOCK: "over_stock_1f1b"}
EVEN, UNEVEN = "5+5", "7+3"

JOB: dict[str, Any] = {
    "model": {"num_layers": 10, "hidden_size": 352, "num_heads": 4, "seq_length": 128},
    "data": {"path": str(Path(sysconfig.get_path("stdlib")) / "argparse.py")},
    "global_batch_size": 32,
    "steps": STEPS,
    "device": "cpu",
    "optimizer": {"learning_rate": 1e-4},
}
PARALLEL = {"pp": 2, "dp": 2, "micro_batch_size": 2, "recompute": "none"}
EMULATED = {"emulate": {"forward_s_per_layer": 0.004, "backward_s_per_layer": 0.008}}  # a sample
REAL = {"flops_per_s": 1e10}  # for the prediction alone: all else is fixed
TOKENS = 32 * 128  # a step
HEADINGS = (
    *("compute", "Mbit/s across", "system", "plan", "step s", "tokens/s"),
    *("Holmes is x times as fast", "MB inside", "MB across", "last loss"),
)


@dataclass(frozen=True)
class Row:
    """One system over one network; losses are those of each step.

    step_s: median over all steps but the first. inside_mb, across_mb: sent by the busiest interface of each network,
    mean over all steps, since what a step leaves under way is counted in the next.
    """

    compute: str
    slow_mbps: int
    system: str
    how: str
    step_s: float
    losses: tuple[float, ...]
    inside_mb: float
    across_mb: float

    @property
    def tokens_per_s(self) -> float:
        return TOKENS / self.step_s


@dataclass(frozen=True)
class Site:
    """A bed and what the probe found on it."""

    bed: Bed
    slow_mbps: int
    inventory: Inventory
    folder: Path


def main() -> None:
    """All rows of the table, the table, and the figures; ends with 1 if two systems' losses differ."""
    started_s, rows = time.monotonic(), []
    with probed_bed(UNSHAPED_MBPS, UNSHAPED_MBPS) as site:
        rows += holmes_rows(site, "emulated", HOLMES, STEPS, {**JOB, "compute": EMULATED, "parallel": PARALLEL})
    for slow_mbps in SLOW_MBPS:
        with probed_bed(FAST_MBPS, slow_mbps) as site:
            rows += all_systems(site, "emulated", EMULATED, STEPS, SLOW_STEPS[slow_mbps])
            if slow_mbps == REAL_MBPS:
                rows += all_systems(site, "real", REAL, REAL_STEPS, REAL_STEPS)
            if slow_mbps == UNEVEN_MBPS:
                rows += uneven_rows(site)
    lines = table_lines(rows)
    print("\n".join(lines))
    for name, value, unit in figures(rows):
        print_figure(name, value, unit)
    print(f"took {time.monotonic() - started_s:.0f} s")
    if "--write-docs" in sys.argv:
        machine = f"{datetime.date.today().isoformat()}, {os.cpu_count()} cores, {platform.machine()}."
        write_table("runtime.md", "measured", (machine, "", *lines))
    if loss_difference(rows) > LARGEST_LOSS_DIFFERENCE:
        sys.exit(f"losses differ by {loss_difference(rows)}")


@contextlib.contextmanager
def probed_bed(
    fast_mbps: int, slow_mbps: int, trunk_mbps: int | None = None, trunk_delay_ms: float = 0
) -> Iterator[Site]:
    """A bed of these rates, probed as a user would; with a trunk, links are measured too."""
    with (
        tempfile.TemporaryDirectory() as name,
        Bed(fast_mbps=fast_mbps, slow_mbps=slow_mbps, trunk_mbps=trunk_mbps, trunk_delay_ms=trunk_delay_ms) as bed,
    ):
        path = Path(name) / "inventory.json"
        links = ["--links"] if trunk_mbps is not None else []
        command = [sys.executable, "-m", "holmes_cli", "probe", str(bed.hosts_yaml), "-o", str(path), *links]
        done = subprocess.run(bed.controller_command(command), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"holmes probe failed:\n{done.stdout}{done.stderr}")
        yield Site(bed, slow_mbps, read_file(Inventory, path), Path(name))


def all_systems(site: Site, compute: str, speed: dict[str, Any], steps: int, slow_steps: int) -> list[Row]:
    """Holmes and its four rivals; those that send gradients across take `slow_steps`."""
    job = {**JOB, "compute": speed, "parallel": PARALLEL}
    stock = plan_of(site, {**job, "parallel": {**PARALLEL, "schedule": "1f1b"}}, "holmes")
    counts = {DDP: slow_steps, FSDP2: slow_steps, STOCK: steps}
    return [
        *holmes_rows(site, compute, HOLMES, steps, job),
        *holmes_rows(site, compute, USUAL, slow_steps, job),
        *rows_of(site, compute, stock, dict.fromkeys(counts, "-"), "benchmarks.torch_rivals", counts),
    ]


def uneven_rows(site: Site) -> list[Row]:
    """Half of the hosts at half speed: as many layers on each stage, and fewer on the slow ones."""
    slow_cluster = site.inventory.clusters[1].name
    emulation = {"emulate": {**EMULATED["emulate"], "slowdown": {slow_cluster: 2.0}}}
    rows = []
    for cut in (EVEN, UNEVEN):
        parallel = {**PARALLEL, "layers": [int(layers) for layers in cut.split("+")]}
        rows += holmes_rows(site, "half speed", cut, STEPS, {**JOB, "compute": emulation, "parallel": parallel})
    return rows


def holmes_rows(site: Site, compute: str, system: str, steps: int, job: dict[str, Any]) -> list[Row]:
    """Holmes' runtime on Holmes' plan of the job, or on the one of the usual rank order."""
    plan = plan_of(site, {**job, "steps": steps}, "usual" if system == USUAL else "holmes")
    return rows_of(site, compute, plan, {system: described(plan)}, "holmes_runtime.train", {})


def plan_of(site: Site, job: dict[str, Any], order: Order) -> Plan:
    """The plan `holmes plan` makes."""
    record = Job.model_validate(job)
    probed = SourceFile(path="inventory.json", digest=site.inventory.digest())
    return make_plan(site.inventory, record, probed, SourceFile(path="job.yaml", digest=record.digest()), order)


def described(plan: Plan) -> str:
    """What the planner chose."""
    extra = f" +{plan.extra_in_flight[0]}" if plan.extra_in_flight else ""
    return f"{plan.schedule}{extra}, " + "+".join(str(stage.num_layers) for stage in plan.stages)


def rows_of(
    site: Site, compute: str, plan: Plan, systems: dict[str, str], module: str, counts: dict[str, int]
) -> list[Row]:
    """Trains with `module` on the ranks of the plan, and reads what each system wrote; `counts` are its steps."""
    with tempfile.TemporaryDirectory(dir=site.folder) as name:
        folder = Path(name)
        config = folder / "config.json"
        config.write_text(run_config_of(plan, "benchmark").to_json(), encoding="utf-8")
        train(site, plan, folder, [module, str(config), *(f"{system}={count}" for system, count in counts.items())])
        rows = []
        for system, how in systems.items():
            lines = folder / system if counts else folder
            ranks = [read_lines(lines / f"metrics-rank{rank.rank}.jsonl") for rank in plan.ranks]
            rows.append(row_of(site, compute, system, how, ranks))
            print(f"{compute}, {site.slow_mbps} Mbit/s, {system} ({how}): {rows[-1].step_s:.3f} s", flush=True)
        return rows


def row_of(site: Site, compute: str, system: str, how: str, ranks: Sequence[Sequence[dict[str, Any]]]) -> Row:
    """What became of a run whose ranks wrote these lines; a step takes as long as its slowest rank."""
    steps = list(zip(*ranks, strict=True))
    return Row(
        compute,
        site.slow_mbps,
        system,
        how,
        step_s=statistics.median(max(line["step_s"] for line in step) for step in steps[1:]),
        losses=tuple(statistics.fmean(line["loss"] for line in step if line["loss"] is not None) for step in steps),
        inside_mb=busiest_mb(ranks, {host.fast_interface for host in site.bed.hosts}),
        across_mb=busiest_mb(ranks, {host.slow_interface for host in site.bed.hosts}),
    )


def busiest_mb(ranks: Sequence[Sequence[dict[str, Any]]], interfaces: set[str]) -> float:
    """MB a step sent over these interfaces, of which each rank's host has one, by the rank that sent most."""
    return max(
        statistics.fmean(
            count["sent_bytes"] / 1e6
            for line in lines
            for nic, count in line["interfaces"].items()
            if nic in interfaces
        )
        for lines in ranks
    )


def read_lines(path: Path) -> list[dict[str, Any]]:
    """One record a step."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def train(site: Site, plan: Plan, folder: Path, arguments: Sequence[str]) -> None:
    """One process `python -m ARGUMENTS` a rank, each on its host. Exits with the log of the first rank that fails."""
    nodes = {node.host: node for node in plan.nodes}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in plan.ranks:
            variables = {
                **{variable.name: variable.value for variable in nodes[rank.host].environment},
                "MASTER_ADDR": plan.nodes[0].shared_address,
                "MASTER_PORT": str(plan.job.master_port),
                "RANK": str(rank.rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(plan.world_size),
                "HOLMES_METRICS_DIR": str(folder),
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
            }
            pairs = [f"{name}={value}" for name, value in variables.items()]
            command = site.bed.on_host_command(rank.host, ["env", *pairs, sys.executable, "-m", *arguments])
            with (folder / f"rank{rank.rank}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        deadline_s = time.monotonic() + TIMEOUT_S
        while any(process.poll() is None for process in processes):
            failed = [rank for rank, process in enumerate(processes) if process.poll()]
            if failed or time.monotonic() > deadline_s:
                log_text = (folder / f"rank{failed[0] if failed else 0}.log").read_text(encoding="utf-8")
                sys.exit(f"{' '.join(arguments)} failed or took too long; rank {failed} says:\n{log_text[-3000:]}")
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def figures(rows: Sequence[Row]) -> list[tuple[str, float, str]]:
    """(name, value, unit) of all ratios."""
    found = {(row.compute, row.slow_mbps, row.system): row for row in rows}
    result = []
    for slow_mbps in sorted(SLOW_MBPS):
        ours = found["emulated", slow_mbps, HOLMES].tokens_per_s
        for rival, name in RIVALS.items():
            ratio = ours / found["emulated", slow_mbps, rival].tokens_per_s
            result.append((f"runtime.{name}.{slow_mbps}mbit", ratio, "x"))
        share = ours / found["emulated", UNSHAPED_MBPS, HOLMES].tokens_per_s
        result.append((f"runtime.share_of_unshaped.{slow_mbps}mbit", share, "1"))
    even, uneven = (found["half speed", UNEVEN_MBPS, cut].tokens_per_s for cut in (EVEN, UNEVEN))
    result.append((f"runtime.uneven_over_even.{UNEVEN_MBPS}mbit", uneven / even, "x"))
    result.append(("runtime.loss_difference", loss_difference(rows), "nats"))
    return result


def loss_difference(rows: Sequence[Row]) -> float:
    """The most by which the losses of two systems differ in one step of real compute."""
    real: list[tuple[float, ...]] = [row.losses for row in rows if row.compute == "real"]
    return max((max(losses) - min(losses) for losses in zip(*real, strict=True)), default=0.0)


def table_lines(rows: Sequence[Row]) -> list[str]:
    """The rows as a Markdown table. Times of real compute depend on the cores of this machine and are left out."""
    found = {(row.compute, row.slow_mbps, row.system): row for row in rows}
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    for row in rows:
        across = "unshaped" if row.slow_mbps == UNSHAPED_MBPS else str(row.slow_mbps)
        times, loss = [f"{row.step_s:.3f}", f"{row.tokens_per_s:.0f}"], ""
        if row.compute == "real":
            times, loss = ["", ""], f"{row.losses[-1]:.6f}"
        ours = found.get((row.compute, row.slow_mbps, HOLMES))
        compared = row.compute == "emulated" and row.system in RIVALS and ours is not None
        ratio = f"{row.step_s / ours.step_s:.2f}" if compared and ours is not None else ""
        cells = [row.compute, across, row.system, row.how, *times, ratio]
        lines.append("| " + " | ".join([*cells, f"{row.inside_mb:.1f}", f"{row.across_mb:.1f}", loss]) + " |")
    return lines


if __name__ == "__main__":
    main()
