"""The bound that holds for every placement and schedule, against all there are on small fleets."""

from __future__ import annotations

from itertools import groupby

import pytest

from benchmarks.best_simulated import all_modes, all_placements, draw_fleet
from holmes_core.records.job import Job, Parallel
from planner.layout.write_out import contender_step_s
from planner.problem.candidates import Candidate
from planner.problem.problem import Problem, read_problem
from planner.schedule.any_schedule_bound import AnyScheduleBounds
from planner.schedule.placement_simulator import PlacementSimulator
from planner.schedule.run_mode import RunMode
from planner.schedule.runners_up import Contender
from planner.search.placement import Placement, PricedPlacement
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.planner.test_shared_cores import on_machines
from tests.seeds import few_of


def best_by_candidate(problem: Problem) -> dict[Candidate, float]:
    """Of each candidate, the predicted step of the placement and schedule that simulates fastest by classes."""
    found = {}
    for candidate, placements in groupby(all_placements(problem), key=lambda each: each.candidate):
        best: tuple[RunMode, Placement] | None = None
        for placement in placements:
            simulator = PlacementSimulator(problem.job, problem.coefficients(candidate), placement)
            for mode in all_modes(simulator, placement):
                if best is None or simulator.lower_bound_s(mode) < best[0].step_s:
                    timed = simulator.timed(mode)
                    best = (timed, placement) if best is None or timed.step_s < best[0].step_s else best
        if best is not None:
            mode, placement = best
            way = Contender(PricedPlacement(mode.step_s, placement), mode, placement.crossing(problem.fleet))
            found[candidate] = contender_step_s(problem, way)
    return found


@pytest.mark.parametrize("seed", few_of(1, (0, 1, 4, 5, 7, 22)))
def test_no_way_to_run_a_small_fleet_comes_below_the_bound(seed: int) -> None:
    problem = read_problem(*draw_fleet(seed))
    best = best_by_candidate(problem)
    assert best
    for candidate, step_s in best.items():
        assert AnyScheduleBounds(problem).candidate_s(candidate) <= step_s
        assert AnyScheduleBounds(problem).across_s(candidate) <= step_s
    assert AnyScheduleBounds(problem).least_s(best) <= min(best.values())


SHARING = bed_job(parallel={"micro_batch_size": 2, "recompute": "none"}, global_batch_size=8)


@pytest.mark.slow
@pytest.mark.parametrize("machines", ["xxxx", "xxyy", "xyyy"])
def test_no_way_to_share_cores_comes_below_the_bound(machines: str) -> None:
    inventory = cpu_inventory([2, 2])
    boot_ids = dict(zip((host.name for host in inventory.hosts), machines, strict=True))
    problem = read_problem(on_machines(inventory, boot_ids, cores=1), SHARING)
    best = best_by_candidate(problem)
    assert {candidate.num_ranks for candidate in best} == {1, 2, 3, 4}
    for candidate, step_s in best.items():
        assert AnyScheduleBounds(problem).candidate_s(candidate) <= step_s
    assert AnyScheduleBounds(problem).least_s(best) <= min(best.values())


def with_schedule(job: Job, **parallel: object) -> Job:
    """The job with a schedule of its own."""
    return job.model_copy(update={"parallel": Parallel.model_validate(parallel)})


def test_a_pipeline_that_must_fill_is_bounded_by_more_than_its_work() -> None:
    # Two ranks, four micro-batches, one class: w_0 = T / 4 and w_1 = (T - w_0) / 4 hold T / 4 + 3 T / 16 of work, so
    # that T is 16 / 7 of one micro-batch's, where two ranks that never wait take 2 of it. Whole layers make it more.
    job = with_schedule(gpt_7b(global_batch_size=4), pp=2, dp=1, tp=1, micro_batch_size=1, schedule="1f1b")
    problem = read_problem(gpu_inventory([1], 2, memory_bytes=None), job)
    candidate = Candidate(1, 2, 1, 1)
    coeffs = problem.coefficients(candidate)
    work_s = job.model.num_layers * coeffs.layer_s[0] + coeffs.head_s[0]
    bound_s = AnyScheduleBounds(problem).candidate_s(candidate)
    assert 16 / 7 * work_s < bound_s < plan_for(problem.inventory, job).prediction.step_s


def test_the_plan_tells_its_distance_from_the_bound() -> None:
    plan = plan_for(cpu_inventory([2, 2]), bed_job())
    assert plan.solve.step_bound_s is not None
    assert plan.solve.step_bound_s <= plan.prediction.step_s
    assert plan.solve.step_gap == pytest.approx(1 - plan.solve.step_bound_s / plan.prediction.step_s)
