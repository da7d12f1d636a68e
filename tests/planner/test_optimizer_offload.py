"""Optimizer states in host memory: where nothing fits otherwise, at a price, and only where hosts have room."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from planner.cost.compute_time import offloaded_update_s
from planner.cost.counts import Execution, state_bytes
from planner.cost.slot import HostShare, read_slot, update_s
from planner.layout.verify import verify
from planner.problem.memory_room import host_state_bytes
from planner.problem.problem import read_problem
from tests.planner.fleets import GIB, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for

BF16 = Execution(tp=1, dp=4, micro_batch_size=1, value_bytes=2, recompute="none", optimizer_offload=True)


def hosts(gpu_gib: int, host_gib: int | None = 1024, clusters: tuple[int, ...] = (1, 1)) -> Inventory:
    """Two hosts of two GPUs."""
    made = gpu_inventory(list(clusters), gpus_per_host=2, memory_bytes=gpu_gib * GIB)
    memory = None if host_gib is None else host_gib * GIB
    return made.model_copy(update={"hosts": tuple(h.model_copy(update={"memory_bytes": memory}) for h in made.hosts)})


def plan_of_64_samples(inventory: Inventory, **parallel: Any) -> Plan:
    return plan_for(inventory, gpt_7b(global_batch_size=64, parallel=parallel))


def test_states_are_in_host_memory_only_where_nothing_fits_otherwise() -> None:
    """7.5 B parameters on four GPUs: 4.5 bytes of states each with two replicas, 30 GiB a GPU without recomputation."""
    small, large = plan_of_64_samples(hosts(24)), plan_of_64_samples(hosts(80))
    assert small.optimizer_offload
    assert not large.optimizer_offload
    assert small.prediction.optimizer_s > large.prediction.optimizer_s
    assert len(small.prediction.host_memory_bytes) == small.pp
    assert large.prediction.host_memory_bytes == ()


@pytest.mark.slow
def test_job_yaml_may_ask_for_it_or_forbid_it() -> None:
    assert plan_of_64_samples(hosts(80), optimizer_offload=True).optimizer_offload
    with pytest.raises(HolmesError, match="GPU memory: no candidate fits"):
        plan_of_64_samples(hosts(24), optimizer_offload=False)


@pytest.mark.slow
def test_hosts_without_room_get_no_states() -> None:
    assert plan_of_64_samples(hosts(24, host_gib=None)).optimizer_offload
    with pytest.raises(HolmesError, match="with enough memory"):
        plan_of_64_samples(hosts(24, host_gib=16))


def test_verify_notices_a_host_that_is_too_small_and_a_prediction_that_is_not_what_stages_need() -> None:
    plan = plan_of_64_samples(hosts(24))
    assert any("for optimizer states" in fault for fault in verify(plan, hosts(24, host_gib=16)))
    prediction = plan.prediction.model_copy(update={"host_memory_bytes": (1,) * plan.pp})
    tampered = plan.model_copy(update={"prediction": prediction})
    assert any("predicted host memory is" in fault for fault in verify(tampered, hosts(24)))


def test_bytes_by_hand() -> None:
    # On the device: weight 2, sum 4, a fourth of reduced gradients 8. On the host a fourth of master 4, moments 8,
    # gradient 4, weight 2, and of 12 more while a checkpoint is written.
    assert state_bytes(100, BF16) == 600 + 200
    assert host_state_bytes(100, BF16, checkpoints=False) == 450
    assert host_state_bytes(100, BF16, checkpoints=True) == 750
    assert host_state_bytes(100, BF16._replace(value_bytes=4), checkpoints=False) == 400
    assert host_state_bytes(100, BF16._replace(optimizer_offload=False), checkpoints=True) == 0


def test_the_slowest_of_copies_and_update_counts() -> None:
    # A fourth of 1000 parameters: 4 bytes to the host, 30 through its memory, 2 back.
    assert offloaded_update_s(1000, BF16, copy_bytes_per_s=100, update_bytes_per_s=1e9) == 10
    assert offloaded_update_s(1000, BF16, copy_bytes_per_s=1e9, update_bytes_per_s=100) == 75


def test_gpus_share_their_host_and_each_has_its_own_lanes() -> None:
    host = gpu_inventory([1]).hosts[0]
    faster = tuple(gpu.model_copy(update={"pci_gen": 5, "pci_width": 16}) for gpu in host.gpus)
    slot = read_slot(host.model_copy(update={"gpus": faster}), "a", gpt_7b())
    assert slot.host == HostShare(pytest.approx(0.8 * 16 * 3.938e9), 12.5e9)  # type: ignore[arg-type]


def test_states_in_host_memory_with_zero_3_are_refused() -> None:
    with pytest.raises(HolmesError, match=r"parallel\.zero 3 with parallel\.optimizer_offload") as refusal:
        plan_of_64_samples(hosts(80), optimizer_offload=True, zero=3)
    assert refusal.value.exit_code == 2

    plan = plan_for(cpu_inventory([4]), bed_job(parallel={"pp": 1, "dp": 4, "zero": 3}))
    faults = verify(plan.model_copy(update={"optimizer_offload": True}), cpu_inventory([4]))
    assert any("zero is 3 and optimizer_offload true" in fault for fault in faults)


def test_states_in_host_memory_come_after_zero_3() -> None:
    """Where replicas that share their weights fit, as three quarters of the weights and sums on a GPU make room."""
    plan = plan_of_64_samples(hosts(48, clusters=(2,)), tp=1, pp=1, dp=4)
    assert (plan.zero, plan.optimizer_offload) == (3, False)
    without = plan_of_64_samples(hosts(48, clusters=(2,)), tp=1, pp=2, dp=2, zero=1)
    assert (without.zero, without.optimizer_offload) == (1, True)


def test_hosts_that_report_a_little_more_memory_are_of_one_class_with_the_least() -> None:
    made = hosts(80, clusters=(2,))
    more = made.hosts[1].model_copy(update={"memory_bytes": 1025 * GIB})
    (alike,) = read_problem(made.model_copy(update={"hosts": (more, made.hosts[0])}), gpt_7b()).fleet.classes
    assert len(alike.hosts) == 2
    assert alike.hardware.host_memory_bytes == int(1024 * GIB * 0.8) // 2


def test_on_cpus_states_are_in_host_memory_anyway() -> None:
    slot = read_slot(cpu_inventory([1]).hosts[0], "a", bed_job())
    assert slot.host is None
    assert update_s(1000, BF16, slot) == update_s(1000, BF16._replace(optimizer_offload=False), slot)
