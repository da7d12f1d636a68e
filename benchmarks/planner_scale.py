"""`holmes plan`, the whole command, on 8 to 12,500 hosts of eight GPUs in two to eight clusters.

Clusters alternate between InfiniBand and RoCE, A100 and H100, and differ in size; between them there is Ethernet. The
inventories are generated, with the adapters and interfaces a probe would find. Seconds and memory are those of the
command from its start to its end, plan.json written. Beside them stands what a loop of plain Python took just before,
since the speed of a shared machine may drift several times over from one minute to the next.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.figure import print_figure
from holmes_core.records.access import Access
from holmes_core.records.devices import Gpu, Netdev, Nic
from holmes_core.records.inventory import Cluster, FabricKind, Host, Inventory, Network, NetworkPort
from holmes_core.records.record_file import write_signed
from holmes_core.units import GIB, bytes_per_s_from_gbps

GPUS, ADAPTERS = 8, 8
KINDS: tuple[tuple[FabricKind, str, float], ...] = (
    ("InfiniBand", "NVIDIA A100-SXM4-80GB", 200.0),
    ("RoCE", "NVIDIA H100 80GB HBM3", 400.0),
)
SHARED_GBPS = 100.0
LOOPS = 3_000_000


@dataclass(frozen=True)
class Case:
    """Hosts by cluster, the model's preset and the global batch."""

    name: str
    sizes: tuple[int, ...]
    preset: str
    global_batch_size: int


CASES = (
    Case("8", (5, 3), "gpt-7.5b", 512),
    Case("64", (24, 20, 12, 8), "gpt-39.1b", 1536),
    Case("512", (192, 160, 96, 64), "gpt-175b", 1536),
    Case("4096", (1536, 1024, 1024, 512), "gpt-1t", 3072),
    Case("12500", (5000, 3500, 2500, 1500), "gpt-1t", 3072),
    Case("512_in_8_clusters", (96, 80, 72, 64, 64, 56, 48, 32), "gpt-175b", 1536),
)


@dataclass(frozen=True)
class Row:
    """One run of the command; `cpu_s` are its processors' seconds, `peak_mb` its largest process's resident size."""

    case: Case
    loop_s: float
    seconds: float
    cpu_s: float
    gap: float
    peak_mb: float
    degrees: str


def main() -> None:
    """Plan each case once, smallest first; or only those named on the command line."""
    chosen = [case for case in CASES if case.name in sys.argv[1:] or len(sys.argv) == 1]
    rows = []
    spawned = multiprocessing.get_context("spawn")
    for case in chosen:
        with (
            tempfile.TemporaryDirectory(prefix="holmes-plan-scale-") as name,
            ProcessPoolExecutor(1, spawned) as aside,
        ):
            rows.append(measure(case, Path(name), aside))
        print_figure(f"planner_scale.loop_seconds.{case.name}", rows[-1].loop_s, "s")
        print_figure(f"planner_scale.seconds.{case.name}", rows[-1].seconds, "s")
        print_figure(f"planner_scale.cpu_seconds.{case.name}", rows[-1].cpu_s, "s")
        print_figure(f"planner_scale.gap.{case.name}", rows[-1].gap, "1")
        print_figure(f"planner_scale.peak_mb.{case.name}", rows[-1].peak_mb, "MB")
    show(rows)


def measure(case: Case, folder: Path, aside: ProcessPoolExecutor) -> Row:
    """Runs the command on the case's files, which other processes write and read.

    A process's largest size counts what its parent held when it was started, so this one must stay small.
    """
    aside.submit(write_inputs, case, folder).result()
    loop_s = time_loop()
    used = run_plan(folder)
    gap, degrees = aside.submit(read_plan, folder).result()
    return Row(case, loop_s, used.seconds, used.cpu_s, gap, used.peak_mb, degrees)


class Used(NamedTuple):
    """What one run of the command took, as `Row` has it."""

    seconds: float
    cpu_s: float
    peak_mb: float


def run_plan(folder: Path, *options: str) -> Used:
    """Runs `holmes plan job.yaml` in `folder`."""
    command = [sys.executable, "-m", "holmes_cli", "plan", "job.yaml", *options]
    started_s = time.monotonic()
    with open(folder / "printed", "w+", encoding="utf-8") as printed:
        child = subprocess.Popen(command, cwd=folder, stdout=printed, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(child.pid, 0)
        seconds, child.returncode = time.monotonic() - started_s, os.waitstatus_to_exitcode(status)
        printed.seek(0)
        if child.returncode != 0:
            raise SystemExit(f"holmes plan failed:\n{printed.read()}")
    return Used(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def time_loop() -> float:
    """Seconds of a loop that Python's own speed decides; one shared server took from 0.2 to 1.2 s within an hour."""
    started_s, total = time.monotonic(), 0
    for number in range(LOOPS):
        total += number * 3 % 7
    return time.monotonic() - started_s


def write_inputs(case: Case, folder: Path) -> None:
    """The case's inventory and job."""
    write_signed(folder / "inventory.json", make_inventory(case.sizes))
    job = {
        "model": {"preset": case.preset},
        "data": {"path": "/data"},
        "steps": 1000,
        "global_batch_size": case.global_batch_size,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")


def read_plan(folder: Path) -> tuple[float, str]:
    """Gap and degrees of the plan."""
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    return plan["solve"]["gap"], f"tp={plan['tp']} pp={plan['pp']} dp={plan['dp']} b={plan['micro_batch_size']}"


def make_inventory(sizes: tuple[int, ...]) -> Inventory:
    """Clusters of `sizes` hosts with eight GPUs and eight adapters each."""
    hosts, clusters, shared = [], [], []
    for index, size in enumerate(sizes):
        kind, gpu, gbps = KINDS[index % len(KINDS)]
        label = ascii_lowercase[index]
        names = tuple(f"{label}{number}" for number in range(1, size + 1))
        hosts += [_host(name, index, number, kind, gpu, gbps) for number, name in enumerate(names)]
        hcas = tuple(f"mlx5_{adapter}:1" for adapter in range(ADAPTERS))
        rate = bytes_per_s_from_gbps(gbps * ADAPTERS)
        ports = tuple(_port(name, None, None, None, hcas, rate) for name in names)
        fabric = Network(name=label, kind=kind, subnet=None, ports=ports)
        clusters.append(Cluster(name=label, hosts=names, fabric=fabric))
        between = bytes_per_s_from_gbps(SHARED_GBPS)
        shared += [_port(name, "eth0", _address(index, n), between, (), None) for n, name in enumerate(names)]
    network = Network(name="shared", kind="Ethernet", subnet="10.0.0.0/8", ports=tuple(shared))
    return Inventory(hosts=tuple(hosts), clusters=tuple(clusters), shared=network, findings=())


def _host(name: str, cluster: int, number: int, kind: FabricKind, gpu: str, gbps: float) -> Host:
    gpus = tuple(
        Gpu(index=i, name=gpu, uuid=f"GPU-{name}-{i}", memory_bytes=80 * GIB, pci_address=f"0000:{16 + i:02x}:00.0")
        for i in range(GPUS)
    )
    nics = tuple(
        Nic(
            device=f"mlx5_{i}",
            port=1,
            kind="InfiniBand" if kind == "InfiniBand" else "RoCE",
            rate_gbps=gbps,
            state="Active",
            phys_state="LinkUp",
            netdev=f"ib{i}",
            subnet_prefix=None,
            sm_lid=None,
            usable_by_nccl_ib=True,
            why="active",
        )
        for i in range(ADAPTERS)
    )
    speed = bytes_per_s_from_gbps(SHARED_GBPS)
    address = f"{_address(cluster, number)}/8"
    netdev = Netdev(name="eth0", up=True, mtu=9000, addresses=(address,), speed_bytes_per_s=speed)
    return Host(name=name, access=Access(), reachable=True, hostname=name, gpus=gpus, nics=nics, netdevs=(netdev,))


def _port(
    host: str, netdev: str | None, address: str | None, rate: float | None, hcas: tuple[str, ...], rdma: float | None
) -> NetworkPort:
    return NetworkPort(
        host=host,
        netdev=netdev,
        address=address,
        bandwidth_bytes_per_s=rate,
        hcas=hcas,
        rdma_bandwidth_bytes_per_s=rdma,
    )


def _address(cluster: int, number: int) -> str:
    return f"10.{cluster}.{number // 250}.{number % 250 + 1}"


def show(rows: list[Row]) -> None:
    """The table for people."""
    table = Table(title="holmes plan, whole command", title_justify="left")
    for heading in ("hosts", "clusters", "model", "loop s", "seconds", "of a CPU", "gap", "peak MB", "plan"):
        table.add_column(heading)
    for row in rows:
        case, gap = row.case, f"{row.gap:.2%}"
        loop, seconds, cpu, peak = f"{row.loop_s:.2f}", f"{row.seconds:.1f}", f"{row.cpu_s:.1f}", f"{row.peak_mb:.0f}"
        hosts, clusters = str(sum(case.sizes)), str(len(case.sizes))
        table.add_row(hosts, clusters, case.preset, loop, seconds, cpu, gap, peak, row.degrees)
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()
