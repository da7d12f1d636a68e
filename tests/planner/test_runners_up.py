"""Runners-up are compared with the plan by the same measure, at every size."""

from __future__ import annotations

from itertools import pairwise

import pytest

from planner.layout.write_out import MAX_RANKS_WRITTEN
from planner.problem.problem import read_problem
from planner.schedule.local_search import rank_improved
from planner.search.branch_and_bound import search
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for, random_inventory
from tests.seeds import few_of, seeds


@pytest.mark.parametrize("seed", seeds(40, few=2, more=2))
def test_no_runner_up_is_faster_than_the_plan(seed: int) -> None:
    plan = plan_for(random_inventory(seed), bed_job(parallel={}))
    seconds = [plan.prediction.step_s, *(other.step_s for other in plan.solve.alternatives)]
    for faster, slower in pairwise(seconds):
        assert slower >= faster * (1 - 1e-6)


@pytest.mark.parametrize("seed", few_of(3, range(0, 40, 4)))
def test_a_runner_up_that_is_no_slower_lost_by_the_tie_break(seed: int) -> None:
    plan = plan_for(random_inventory(seed), bed_job(parallel={}))
    for other in plan.solve.alternatives:
        equal = other.step_s <= plan.prediction.step_s * (1 + 1e-6)
        assert other.why.startswith("equally fast; the plan prefers") == equal
        assert " 0 ms longer" not in other.why


@pytest.mark.slow
def test_no_runner_up_is_faster_where_only_the_plan_is_written_out() -> None:
    plan = plan_for(gpu_inventory([140, 140]), gpt_7b(global_batch_size=2240))
    ranks = plan.world_size + sum(other.tp * other.pp * other.dp for other in plan.solve.alternatives)
    assert ranks > MAX_RANKS_WRITTEN
    assert all(other.step_s >= plan.prediction.step_s * (1 - 1e-9) for other in plan.solve.alternatives)


@pytest.mark.parametrize("max_starts", [0, 2])
def test_few_starts_find_a_contender_among_few_placements(max_starts: int) -> None:
    problem = read_problem(cpu_inventory([2, 2]), bed_job())
    found = search(problem, 60.0).found[:1]
    assert rank_improved(problem, found, max_starts=max_starts)
