"""Hosts that are one machine share its cores, among as many ranks as a plan has on them."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from planner.cost.slot import Cores
from planner.problem.candidates import Candidate, enumerate_candidates, with_other_fills
from planner.problem.problem import read_problem
from planner.search.branch_and_bound import search
from tests.planner.enumerator import best_by_enumeration
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for

EMULATED = {"emulate": {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02}}
FOUR = Candidate(1, 2, 2, 2)


def one_machine(inventory: Inventory, cores: int | None = 2) -> Inventory:
    """The hosts of `inventory` as namespaces of one machine."""
    return on_machines(inventory, dict.fromkeys((host.name for host in inventory.hosts), "d704f067"), cores)


def on_machines(inventory: Inventory, boot_ids: dict[str, str], cores: int | None) -> Inventory:
    """The hosts of `inventory` with those boot ids and so many cores each."""
    hosts = [host.model_copy(update={"boot_id": boot_ids[host.name], "cpu_count": cores}) for host in inventory.hosts]
    return inventory.model_copy(update={"hosts": tuple(hosts)})


def threads_per_core(inventory: Inventory, job: Job, candidate: Candidate = FOUR) -> set[float]:
    return {slot.threads_per_core for slot in read_problem(inventory, job).coefficients(candidate).slots}


@pytest.mark.parametrize(
    ("cores", "changes", "candidate", "share"),
    [
        (2, {}, FOUR, 2.0),
        (2, {}, Candidate(1, 3, 1, 2), 1.5),
        (2, {}, Candidate(1, 2, 1, 2), 1.0),
        (2, {"threads_per_slot": 3}, FOUR, 6.0),
        (16, {}, FOUR, 1.0),
        (None, {}, FOUR, 1.0),
        (2, {"compute": EMULATED}, FOUR, 1.0),  # a sleep takes no core
    ],
)
def test_ranks_on_one_machine_share_its_cores(
    cores: int | None, changes: dict[str, Any], candidate: Candidate, share: float
) -> None:
    inventory = one_machine(cpu_inventory([2, 2]), cores)
    assert threads_per_core(inventory, bed_job(parallel={}, **changes), candidate) == {share}


def test_hosts_that_boot_by_themselves_share_nothing() -> None:
    inventory = cpu_inventory([2, 2])
    apart = on_machines(inventory, {host.name: host.name for host in inventory.hosts}, 1)
    assert threads_per_core(apart, bed_job()) == {1.0}


def test_gpus_share_no_cores() -> None:
    assert not read_problem(one_machine(gpu_inventory([2])), gpt_7b()).fleet.shares_cores


def test_ranks_on_one_machine_compute_as_slowly_as_its_cores_are_shared() -> None:
    apart, together = (
        read_problem(inventory, bed_job()).coefficients(FOUR).slots[0]
        for inventory in (cpu_inventory([2, 2]), one_machine(cpu_inventory([2, 2])))
    )
    assert apart.speed is not None
    assert together.speed == apart.speed.slowed(2)


def test_hosts_that_a_plan_leaves_out_do_not_slow_it() -> None:
    """Two ranks have a core each, whether or not there are two hosts more on the machine."""
    job = bed_job(parallel={"pp": 1, "dp": 2})
    alone, with_others = (one_machine(cpu_inventory(hosts)) for hosts in ([2], [2, 2]))
    assert plan_for(with_others, job).prediction == plan_for(alone, job).prediction


def test_the_search_finds_the_best_number_of_ranks_for_the_cores() -> None:
    problem = read_problem(one_machine(cpu_inventory([2, 2]), cores=1), bed_job(parallel={"micro_batch_size": 2}))
    answer = search(problem, 3600.0)
    candidates = [
        fill
        for each in enumerate_candidates(problem.job, problem.fleet)
        for fill in with_other_fills(problem.job, each)
    ]
    bests_s = [
        best_by_enumeration(problem.coefficients(each), crossing) for each in candidates for crossing in (False, True)
    ]
    assert answer.status == "optimal"
    assert answer.found[0].objective_s == pytest.approx(min(each for each in bests_s if each is not None))


def test_a_refused_host_takes_no_cores() -> None:
    inventory = one_machine(cpu_inventory([2, 2]))
    clusters = (inventory.clusters[0], inventory.clusters[1].model_copy(update={"hosts": ("b1",)}))
    job = bed_job(parallel={})
    fleet = read_problem(inventory.model_copy(update={"clusters": clusters}), job).fleet
    assert {each.hardware.slot.cores for each in fleet.classes} == {Cores(3, 0.5)}
