"""Another probe that finds nothing new leaves a plan valid; one that does makes it stale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holmes_core.records.devices import Gpu, GpuProcess, Nic
from holmes_core.records.inventory import Finding, Host, Inventory
from holmes_core.records.record_file import read_file, write_atomically
from tests.builders.local_runs import write_inputs
from tests.cli.conftest import Command
from tests.cli.test_foreign_files import with_kernel
from tests.planner.fleets import gpu_inventory

FLEET = gpu_inventory([1, 1])
HOST = FLEET.hosts[0]
GPU: Gpu = HOST.gpus[0]
NIC = Nic(
    device="mlx5_0",
    port=1,
    kind="InfiniBand",
    rate_gbps=400.0,
    state="Active",
    phys_state="LinkUp",
    netdev="ib0",
    subnet_prefix=None,
    sm_lid=None,
    usable_by_nccl_ib=True,
    why="",
)
NOTE = Finding(rule="X", severity="W", hosts=(HOST.name,), evidence="", effect="", remedy="")


def fleet_with(host: Host, *findings: Finding) -> Inventory:
    """The fleet with another first host."""
    return FLEET.model_copy(update={"hosts": (host, *FLEET.hosts[1:]), "findings": findings})


@pytest.mark.slow
def test_a_plan_is_launched_after_another_probe_of_the_same_hosts(command: Command, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    assert command("probe", "hosts.yaml").code == 0
    first = read_file(Inventory, tmp_path / "inventory.json")
    assert command("plan", "job.yaml").code == 0
    assert command("probe", "hosts.yaml").code == 0
    again = read_file(Inventory, tmp_path / "inventory.json")
    assert first.digest() != again.digest()  # clocks and round trips are never the same twice
    assert command("launch", "plan.json", "--dry-run").code == 0
    other = again.model_copy(update={"hosts": (with_kernel(again, "6.99"), *again.hosts[1:])})
    write_atomically(tmp_path / "inventory.json", other.to_json())
    done = command("launch", "plan.json", "--dry-run")
    assert done.code == 2
    assert "plan.json: stale: " in done.stderr


@pytest.mark.parametrize(
    "update",
    [
        {"clock_skew_s": 0.3, "round_trip_s": 0.01, "counter_interval_s": 2.0},
        {"gpu_processes": (GpuProcess(pid=1, gpu=0, name="python", memory_bytes=1),)},
        {"gpus": (GPU.model_copy(update={"throttle_reasons": ("sw_power_cap",)}), *HOST.gpus[1:])},
    ],
    ids=lambda update: ", ".join(update),
)
def test_what_was_so_at_the_moment_of_the_probe_makes_no_plan_stale(update: dict[str, Any]) -> None:
    assert fleet_with(HOST.model_copy(update=update)).source_digest() == fleet_with(HOST).source_digest()


def test_counters_and_notes_make_no_plan_stale_and_another_rate_or_refusal_does() -> None:
    counted = NIC.model_copy(update={"counters": (("symbol_error", 7),), "counter_growth": (("symbol_error", 1),)})
    slower, refusal = NIC.model_copy(update={"rate_gbps": 200.0}), NOTE.model_copy(update={"severity": "F"})
    usual = fleet_with(HOST.model_copy(update={"nics": (NIC,)})).source_digest()

    assert fleet_with(HOST.model_copy(update={"nics": (counted,)}), NOTE).source_digest() == usual
    assert fleet_with(HOST.model_copy(update={"nics": (slower,)})).source_digest() != usual
    assert fleet_with(HOST.model_copy(update={"nics": (NIC,)}), refusal).source_digest() != usual
