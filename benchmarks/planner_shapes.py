"""`holmes plan`, the whole command, on fleets and jobs of unusual shape, each with a limit of ten seconds.

Hosts that all differ, clusters of one host each, models of a thousand layers, a batch of a million samples: shapes in
which much has to be looked at, though few hosts are there. What counts is whether the command ends within its limit
and, where it does so without a proof, how large the gap is. On a busy machine trust the processors' seconds.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.figure import print_figure
from benchmarks.planner_scale import KINDS, Used, make_inventory, read_plan, run_plan
from holmes_core.records.devices import Gpu
from holmes_core.records.inventory import Inventory, Network
from holmes_core.records.record_file import write_atomically
from holmes_core.units import GIB

TIME_LIMIT_S = 10.0
DEEP = {"num_layers": 1000, "hidden_size": 4096, "num_heads": 32, "seq_length": 2048, "vocab_size": 51200}


@dataclass(frozen=True)
class Case:
    """Hosts by cluster, whether they all differ, and what of job.yaml is not as usual."""

    name: str
    sizes: tuple[int, ...]
    all_differ: bool = False
    job: Mapping[str, Any] = field(default_factory=dict)


CASES = (
    Case("16_hosts_all_different", (10, 6), all_differ=True),
    Case("32_hosts_all_different", (20, 12), all_differ=True),
    Case("20_clusters_of_one", (1,) * 20),
    Case("1000_layers_16_hosts", (10, 6), job={"model": DEEP}),
    Case("1000_layers_64_hosts", (40, 24), job={"model": DEEP}),
    Case("batch_of_a_million", (5, 3), job={"global_batch_size": 2**20}),
)


@dataclass(frozen=True)
class Row:
    """One run of the command."""

    case: Case
    used: Used
    gap: float
    degrees: str


def main() -> None:
    """Plan each case once; or only those named on the command line."""
    rows = []
    for case in CASES:
        if case.name in sys.argv[1:] or len(sys.argv) == 1:
            with tempfile.TemporaryDirectory(prefix="holmes-plan-shapes-") as name:
                rows.append(measure(case, Path(name)))
            print_figure(f"planner_shapes.{case.name}.seconds", rows[-1].used.seconds, "s")
            print_figure(f"planner_shapes.{case.name}.cpu_seconds", rows[-1].used.cpu_s, "s")
            print_figure(f"planner_shapes.{case.name}.gap", rows[-1].gap, "1")
    show(rows)


def measure(case: Case, folder: Path) -> Row:
    """Runs the command on the case's files."""
    inventory = make_inventory(case.sizes)
    if case.all_differ:
        inventory = all_different(inventory)
    write_atomically(folder / "inventory.json", inventory.json_parts())
    job = {"model": {"preset": "gpt-7.5b"}, "data": {"path": "/data"}, "steps": 1000, "global_batch_size": 512}
    (folder / "job.yaml").write_text(yaml.safe_dump(job | dict(case.job)), encoding="utf-8")
    used = run_plan(folder, "--time-limit", str(TIME_LIMIT_S))
    return Row(case, used, *read_plan(folder))


def all_different(inventory: Inventory) -> Inventory:
    """The inventory as if every host had been measured: each network at a rate of its own, each GPU's memory too."""
    clusters = tuple(each.model_copy(update={"fabric": _all_different(each.fabric)}) for each in inventory.clusters)
    hosts = tuple(
        host.model_copy(update={"gpus": tuple(_smaller(gpu, number) for gpu in host.gpus)})
        for number, host in enumerate(inventory.hosts)
    )
    assert inventory.shared is not None
    return inventory.model_copy(
        update={"hosts": hosts, "clusters": clusters, "shared": _all_different(inventory.shared)}
    )


def _smaller(gpu: Gpu, number: int) -> Gpu:
    """With a quarter of a GiB less for each host before; every other host has the other kind."""
    assert gpu.memory_bytes is not None
    name = KINDS[number % len(KINDS)][1]
    return gpu.model_copy(update={"name": name, "memory_bytes": gpu.memory_bytes - number * GIB // 4})


def _all_different(network: Network) -> Network:
    """Each port a hundredth slower than the one before."""
    rates = "bandwidth_bytes_per_s", "rdma_bandwidth_bytes_per_s"
    ports = []
    for number, port in enumerate(network.ports):
        known = {name: rate * 0.99**number for name in rates if (rate := getattr(port, name)) is not None}
        ports.append(port.model_copy(update=known))
    return network.model_copy(update={"ports": tuple(ports)})


def show(rows: list[Row]) -> None:
    """The table for people."""
    table = Table(title=f"holmes plan --time-limit {TIME_LIMIT_S:g}, whole command", title_justify="left")
    for heading in ("case", "seconds", "of a CPU", "gap", "plan"):
        table.add_column(heading)
    for row in rows:
        seconds, cpu, gap = f"{row.used.seconds:.1f}", f"{row.used.cpu_s:.1f}", f"{row.gap:.2%}"
        table.add_row(row.case.name, seconds, cpu, gap, row.degrees)
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()
