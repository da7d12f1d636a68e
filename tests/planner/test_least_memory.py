"""Memory is filled for what it gains: the shallowest schedule among those that take about as long."""

from __future__ import annotations

import random

from holmes_core.records.inventory import Inventory
from holmes_core.records.record_file import read_file
from planner.problem.problem import Problem, read_problem
from planner.schedule.least_memory import WORTH_MEMORY, in_least_memory
from planner.schedule.placement_simulator import PlacementSimulator
from planner.schedule.run_mode import RunMode
from planner.schedule.runners_up import Contender, rank_contenders
from planner.search.branch_and_bound import search
from tests.planner.fleets import GIB, gpt_7b, gpu_inventory, plan_for
from tests.planner.kept_plans import EXAMPLES


def simulator_of(problem: Problem, contender: Contender) -> PlacementSimulator:
    """What simulates its placement."""
    placement = contender.found.placement
    return PlacementSimulator(problem.job, problem.coefficients(placement.candidate), placement)


def test_micro_batches_in_flight_that_gain_nothing_are_left_out() -> None:
    # Eight more in flight than 1F1B has simulate as fast as two more, and take 30 GiB.
    job = gpt_7b(parallel={"dp": 32, "micro_batch_size": 1})
    plan = plan_for(read_file(Inventory, EXAMPLES / "two_clusters.json"), job)
    assert plan.schedule == "eager"
    assert max(plan.prediction.memory_bytes) < 50 * GIB


def test_it_needs_no_more_memory_and_costs_no_more_than_that_is_worth() -> None:
    less = 0
    for seed in range(6):
        draw = random.Random(seed)
        inventory = gpu_inventory([2, 2], 4, shared_gbps=draw.choice((2.0, 10.0, 25.0)))
        problem = read_problem(inventory, gpt_7b(global_batch_size=draw.choice((32, 64))))
        for before in rank_contenders(problem, search(problem, 60.0).found):
            after, simulator = in_least_memory(problem, before), simulator_of(problem, before)
            assert simulator.fits(after.mode)
            assert simulator.fullest_share(after.mode) <= simulator.fullest_share(before.mode)
            assert after.mode.step_s <= before.mode.step_s * (1 + WORTH_MEMORY)
            less += after.mode != before.mode
    assert less


def test_a_schedule_that_is_worth_its_memory_is_kept() -> None:
    problem = read_problem(gpu_inventory([1, 1], 4, shared_gbps=10.0), gpt_7b(parallel={"pp": 2}, global_batch_size=32))
    best = rank_contenders(problem, search(problem, 60.0).found)[0]
    simulator = simulator_of(problem, best)
    plain = simulator.timed(RunMode("1f1b", 1, (), best.mode.layers, 0.0))
    assert best.mode.schedule == "eager"
    assert plain.step_s > best.mode.step_s * (1 + WORTH_MEMORY)
    assert in_least_memory(problem, best).mode.schedule == "eager"
