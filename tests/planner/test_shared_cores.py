"""Hosts that are one machine share its cores."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.inventory import Inventory
from planner.problem.problem import read_problem
from planner.problem.shared_cores import core_shares
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory

EMULATED = {"emulate": {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02}}


def one_machine(inventory: Inventory, cores: int | None = 2) -> Inventory:
    """The hosts of `inventory` as namespaces of one machine."""
    same = {"boot_id": "d704f067", "cpu_count": cores}
    return inventory.model_copy(update={"hosts": tuple(each.model_copy(update=same) for each in inventory.hosts)})


@pytest.mark.parametrize(
    ("cores", "changes", "share"),
    [
        (2, {}, 2.0),  # four slots
        (2, {"threads_per_slot": 3}, 6.0),
        (2, {"parallel": {"tp": 1, "pp": 2, "dp": 1}}, 1.0),  # two ranks
        (16, {}, 1.0),
        (None, {}, 1.0),
        (2, {"compute": EMULATED}, 1.0),  # a sleep takes no core
    ],
)
def test_slots_of_one_machine_share_its_cores(cores: int | None, changes: dict[str, Any], share: float) -> None:
    inventory = one_machine(cpu_inventory([2, 2]), cores)
    assert set(core_shares(inventory, bed_job(**changes)).values()) == {share}


def test_hosts_that_boot_by_themselves_share_nothing() -> None:
    inventory = cpu_inventory([2, 2])
    booted = [host.model_copy(update={"boot_id": host.name, "cpu_count": 1}) for host in inventory.hosts]
    apart = inventory.model_copy(update={"hosts": tuple(booted)})
    assert set(core_shares(apart, bed_job()).values()) == {1.0}


def test_gpus_share_no_cores() -> None:
    assert set(core_shares(one_machine(gpu_inventory([2])), gpt_7b()).values()) == {1.0}


def test_a_fleet_on_one_machine_computes_as_slowly_as_its_cores_are_shared() -> None:
    apart, together = (
        read_problem(inventory, bed_job()).fleet.classes[0].hardware.slot.speed
        for inventory in (cpu_inventory([2, 2]), one_machine(cpu_inventory([2, 2])))
    )
    assert apart is not None
    assert together == apart.slowed(2)
