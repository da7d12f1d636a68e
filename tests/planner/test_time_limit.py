"""What a plan is worth that ran out of time: it is compared with what anyone would try first."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from planner.advice.changes import apply_changes
from planner.advice.what_if import parse_changes
from planner.layout.write_out import contender_step_s
from planner.problem.problem import read_problem
from planner.schedule.any_schedule_bound import AnyScheduleBounds
from planner.schedule.runners_up import rank_contenders
from planner.search.branch_and_bound import search
from planner.time_left import TimeLeft
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.seeds import few_of

GIB_IN_KIB = 1 << 20
FLEETS = {
    "GPUs": (gpu_inventory([5, 3]), gpt_7b()),
    "GPUs, slow between clusters": (gpu_inventory([3, 4], shared_gbps=0.5), gpt_7b()),
    "CPUs": (cpu_inventory([3, 2, 2]), bed_job(parallel={})),
}


def alone(inventory: Inventory) -> Iterator[Inventory]:
    """Each cluster without the hosts of the others."""
    for cluster in inventory.clusters:
        others = [host.name for host in inventory.hosts if host.name not in cluster.hosts]
        text = ",".join(f"-host:{name}" for name in others)
        yield apply_changes(inventory, parse_changes(text, inventory))


def greedy_step_s(inventory: Inventory, job: Job) -> float:
    """The step of the first placement that a search finds."""
    problem = read_problem(inventory, job)
    first = search(problem, 0.0).found[:1]
    return contender_step_s(problem, rank_contenders(problem, first)[0])


@pytest.mark.parametrize("name", few_of(1, ["CPUs", "GPUs", "GPUs, slow between clusters"]))
def test_without_time_no_plan_is_slower_than_greedy_the_usual_order_or_one_cluster(name: str) -> None:
    inventory, job = FLEETS[name]
    plan = plan_for(inventory, job, time_limit_s=0.0)
    others_s = [plan_for(each, job, time_limit_s=0.0).prediction.step_s for each in alone(inventory)]
    others_s += [plan_for(inventory, job, order="usual").prediction.step_s, greedy_step_s(inventory, job)]
    assert plan.prediction.step_s <= min(others_s) * (1 + 1e-6)


@pytest.mark.parametrize("name", few_of(1, [*FLEETS]))
def test_search_long_after_its_limit_still_finds_a_placement(name: str) -> None:
    result = search(read_problem(*FLEETS[name]), -1.0)
    assert result.found
    assert result.bound_s <= result.found[0].objective_s


def test_bound_on_any_step_without_time_is_no_higher() -> None:
    problem = read_problem(*FLEETS["GPUs"])
    candidates = [candidate for _, candidate in search(problem, 0.0).ranked]
    bounds = problem.once(AnyScheduleBounds)
    assert 0 < bounds.least_s(candidates, TimeLeft(0.0)) <= bounds.least_s(candidates)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"global_batch_size": 2**20}, {"model": {**vars(bed_job().model), "num_layers": 1000}}]
)
def test_huge_jobs_are_planned_and_not_simulated_action_by_action(changes: dict[str, Any]) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of this process, which has run other tests
    plan = plan_for(cpu_inventory([2, 2]), bed_job(parallel={}, **changes), time_limit_s=2.0)
    assert plan.prediction.step_s > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 2 * GIB_IN_KIB
