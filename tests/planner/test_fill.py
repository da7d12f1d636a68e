"""What filling a pipeline costs: the closed form's share against simulations, and what the search makes of it."""

from __future__ import annotations

import pytest

from benchmarks.planner_scale import CASES, Case, make_inventory
from holmes_core.records.job import Job
from holmes_runtime.config.precedence import precedence_of
from planner.cost.collectives import PassTimes
from planner.cost.compute_time import split_factor
from planner.cost.fill import Fill, fill_share, fills
from planner.problem.candidates import Candidate, more_recompute
from planner.problem.problem import read_problem
from planner.schedule.placement_simulator import PlacementSimulator
from planner.schedule.schedule_choice import choose_schedule
from planner.schedule.simulate import Pipeline, PipelineTimes, simulate
from planner.search.branch_and_bound import search
from planner.search.placement import Placement
from tests.planner.fleets import gpt_7b, gpu_inventory

LAYERS = (PassTimes(1.0, 1.25), PassTimes(1.0, 2.0), PassTimes(1.0, 3.0))


def simulated_share(job: Job, fill: Fill, pp: int, microbatches: int, layer: PassTimes) -> float:
    """The fill of equal stages without edges, over that of 1F1B."""
    free = (0.0,) * (pp - 1)
    times = PipelineTimes(
        (layer.forward_s,) * pp, (layer.backward_s,) * pp, free, free, split_factor=split_factor(job), latency_s=free
    )
    step_s = simulate([Pipeline(precedence_of(fill, pp, microbatches, 1, ()), times)])
    return (step_s / layer.both_s - microbatches) / (pp - 1)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("fill", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize(("pp", "microbatches"), [(2, 2), (4, 4), (4, 9), (8, 3), (8, 64), (16, 1), (16, 48)])
def test_the_fill_of_equal_stages_is_that_of_the_simulation(
    fill: Fill, pp: int, microbatches: int, emulated: bool, layer: PassTimes
) -> None:
    emulate = {"emulate": {"forward_s_per_layer": 1.0, "backward_s_per_layer": 2.0}}
    job = gpt_7b(**({"compute": emulate} if emulated else {}))
    share = fill_share(job, fill, pp, microbatches, layer)
    assert share == pytest.approx(simulated_share(job, fill, pp, microbatches, layer), rel=1e-9)


def test_only_schedules_that_may_be_run_are_priced() -> None:
    assert fills(gpt_7b(), 4, "none") == ("1f1b", "zero-bubble")
    assert fills(gpt_7b(), 1, "none") == ("1f1b",)
    assert fills(gpt_7b(), 4, "full") == ("1f1b",)
    assert fills(gpt_7b(parallel={"schedule": "eager"}), 4, "none") == ("1f1b",)
    assert fills(gpt_7b(parallel={"schedule": "zero-bubble"}), 4, "none") == ("zero-bubble",)
    assert fills(gpt_7b(parallel={"chunks": 2}), 4, "none") == ("1f1b",)


def test_zero_bubble_does_not_recompute_layers_whole() -> None:
    split = Candidate(1, 4, 1, 1, "selective", "zero-bubble")
    assert more_recompute(gpt_7b(), split) is None
    assert more_recompute(gpt_7b(), Candidate(1, 4, 1, 1, "selective")) == Candidate(1, 4, 1, 1, "full")


def test_zero_bubble_holds_a_microbatch_of_every_stage_on_all_of_them() -> None:
    problem = read_problem(gpu_inventory([2, 2]), gpt_7b())
    plain, split = (problem.coefficients(Candidate(1, 8, 4, 1, "none", fill)) for fill in ("1f1b", "zero-bubble"))
    assert split.capacity[0] == plain.capacity[0]
    assert all(a <= b for s, p in zip(split.capacity, plain.capacity, strict=True) for a, b in zip(s, p, strict=True))
    assert split.capacity[6] < plain.capacity[6]


def test_where_few_microbatches_fill_many_stages_the_closed_form_finds_what_the_simulation_prefers() -> None:
    """Sixteen stages, sixteen micro-batches: a third of the fill of 1F1B is left."""
    job = gpt_7b(global_batch_size=64, parallel={"tp": 1, "pp": 16, "dp": 2, "micro_batch_size": 2})
    problem = read_problem(gpu_inventory([2, 2]), job)
    best = search(problem, 60.0).found[0]
    assert best.placement.candidate.fill == "zero-bubble"
    mode = choose_schedule(job, problem.coefficients(best.placement.candidate), best.placement)
    assert mode is not None
    assert mode.schedule == "zero-bubble"
    assert best.objective_s == pytest.approx(mode.step_s, rel=0.05)


def test_replicas_that_clusters_hold_unevenly_exchange_in_one_ring() -> None:
    """Five and three hosts: the simulation took what equal halves would have taken, half of what it takes."""
    job = gpt_7b(parallel={"tp": 1, "pp": 1, "dp": 64, "micro_batch_size": 2})
    problem = read_problem(gpu_inventory([5, 3]), job)
    candidate = Candidate(1, 1, 64, 2)
    uneven = Placement(candidate, (36,), ((0,) * 40 + (1,) * 24,), (4,) * 64)
    even = Placement(candidate, (36,), ((0,) * 32 + (1,) * 32,), (4,) * 64)
    coeffs = problem.coefficients(candidate)
    seconds = [
        simulator.timed(next(mode for mode in simulator.modes() if mode.schedule == "1f1b")).step_s
        for simulator in (PlacementSimulator(job, coeffs, each) for each in (uneven, even))
    ]
    assert seconds[0] > 1.2 * seconds[1]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] * (case.name != "8")) for case in CASES[:3]],
    ids=lambda c: c.name,
)
def test_the_simulated_winner_is_among_the_closed_forms_first_five(case: Case) -> None:
    job = gpt_7b(model={"preset": case.preset}, global_batch_size=case.global_batch_size)
    problem = read_problem(make_inventory(case.sizes), job)
    found = search(problem, 600.0).found
    modes = [choose_schedule(job, problem.coefficients(each.placement.candidate), each.placement) for each in found]
    seconds = [mode.step_s for mode in modes if mode is not None]
    assert len(seconds) > 10
    assert seconds.index(min(seconds)) < 5
