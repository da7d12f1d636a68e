"""What filling a pipeline costs: the closed form's share against simulations, and what the search makes of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from benchmarks.planner_scale import CASES, Case, make_inventory
from holmes_core.errors import HolmesError
from holmes_core.records.job import Job
from planner.cost.collectives import PassTimes
from planner.cost.compute_time import split_factor
from planner.cost.fill import Fill, fill_of, fill_share, fills
from planner.problem.candidates import RECOMPUTE, Candidate, check_job, more_recompute, with_other_fills
from planner.problem.problem import read_problem
from planner.schedule.local_search import rank_improved
from planner.schedule.placement_simulator import PlacementSimulator
from planner.schedule.runners_up import choose_schedule
from planner.schedule.simulate import PipelineTimes, ReplicaSchedule, ScheduleOrder, simulate
from planner.search.branch_and_bound import search
from planner.search.placement import Placement
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory
from tests.seeds import few_of

LAYERS = (PassTimes(1.0, 1.25), PassTimes(1.0, 2.0), PassTimes(1.0, 3.0))


def simulated_share(job: Job, fill: Fill, pp: int, microbatches: int, layer: PassTimes) -> float:
    """The fill of equal stages without edges, over that of 1F1B."""
    free = (0.0,) * (pp - 1)
    times = PipelineTimes(
        (layer.forward_s,) * pp, (layer.backward_s,) * pp, free, free, split_factor=split_factor(job), latency_s=free
    )
    step_s = simulate([ReplicaSchedule(ScheduleOrder(fill, pp, microbatches), times)])
    return (step_s / layer.both_s - microbatches) / (pp - 1)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("fill", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize(
    ("pp", "microbatches"), few_of(3, [(2, 1), (2, 2), (3, 2), (4, 4), (4, 9), (8, 3), (8, 64), (16, 1), (16, 48)])
)
def test_the_fill_of_equal_stages_is_that_of_the_simulation(
    fill: Fill, pp: int, microbatches: int, emulated: bool, layer: PassTimes
) -> None:
    emulate = {"emulate": {"forward_s_per_layer": 1.0, "backward_s_per_layer": 2.0}}
    job = gpt_7b(**({"compute": emulate} if emulated else {}))
    share = fill_share(job, fill, pp, microbatches, layer)
    assert share == pytest.approx(simulated_share(job, fill, pp, microbatches, layer), rel=1e-9)


def eager_7b(**changes: Any) -> Job:
    """Not compiled, so that backwards can be split."""
    return gpt_7b(compile=False, **changes)


def test_only_schedules_that_may_be_run_are_priced() -> None:
    assert fills(eager_7b(), 4, "none") == ("1f1b", "zero-bubble")
    assert fills(eager_7b(), 1, "none") == ("1f1b",)
    assert fills(eager_7b(), 4, "full") == ("1f1b",)
    assert fills(eager_7b(parallel={"schedule": "eager"}), 4, "none") == ("1f1b",)
    assert fills(eager_7b(parallel={"schedule": "zero-bubble"}), 4, "none") == ("zero-bubble",)
    assert fills(eager_7b(parallel={"chunks": 2}), 4, "none") == ("1f1b",)
    assert fills(eager_7b(), 4, "none", weight_shards=2) == ("1f1b",)


def test_every_fill_that_is_searched_is_one_that_the_stages_are_run_under() -> None:
    """With sharded weights and without: neither memory nor fill is counted of a schedule that is not simulated."""
    job = eager_7b()
    problem = read_problem(gpu_inventory([2, 2]), job)
    for candidate in (Candidate(1, 4, 4, 1, recompute, weight_shards=n) for recompute in RECOMPUTE for n in (1, 4)):
        searched = {each.fill for each in with_other_fills(job, candidate)}
        placement = Placement(candidate, (9,) * 4, ((0,) * 4,) * 4, (128,) * 4)
        simulator = PlacementSimulator(job, problem.coefficients(candidate), placement)
        assert searched == {fill_of(mode.schedule) for mode in simulator.modes()}


def test_a_compiled_backward_is_never_split() -> None:
    job = bed_job(compile=True, parallel={"pp": 2, "dp": 1}, compute={"flops_per_s": 1e10})
    problem = read_problem(cpu_inventory([1, 1]), job)
    found = search(problem, 60.0).found[0].placement
    modes = PlacementSimulator(job, problem.coefficients(found.candidate), found).modes()

    assert {mode.schedule for mode in modes} == {"1f1b", "eager", "interleaved"}
    assert fills(job, 4, "none") == ("1f1b",)


@pytest.mark.parametrize(
    ("job", "said"), [(gpt_7b, "left out, which means true on GPUs"), (partial(bed_job, compile=True), "true")]
)
def test_zero_bubble_asked_for_with_compiled_layers_is_refused(job: Callable[..., Job], said: str) -> None:
    with pytest.raises(HolmesError, match=f"zero-bubble with compile {said}") as refused:
        check_job(job(parallel={"pp": 2, "schedule": "zero-bubble"}))
    assert refused.value.exit_code == 2
    assert "compile: false" in str(refused.value.hint)
    check_job(job(parallel={"pp": 2, "schedule": "zero-bubble"}).model_copy(update={"compile": False}))


def test_zero_bubble_does_not_recompute_layers_whole() -> None:
    split = Candidate(1, 4, 1, 1, "selective", "zero-bubble")
    assert more_recompute(eager_7b(), split) is None
    assert more_recompute(eager_7b(), Candidate(1, 4, 1, 1, "selective")) == Candidate(1, 4, 1, 1, "full")


def test_zero_bubble_holds_a_microbatch_of_every_stage_on_all_of_them() -> None:
    problem = read_problem(gpu_inventory([2, 2]), eager_7b())
    plain, split = (problem.coefficients(Candidate(1, 8, 4, 1, "none", fill)) for fill in ("1f1b", "zero-bubble"))
    assert split.capacity[0] == plain.capacity[0]
    assert all(a <= b for s, p in zip(split.capacity, plain.capacity, strict=True) for a, b in zip(s, p, strict=True))
    assert split.capacity[6] < plain.capacity[6]


def test_where_few_microbatches_fill_many_stages_the_closed_form_finds_what_the_simulation_prefers() -> None:
    """Sixteen stages, sixteen micro-batches: a third of the fill of 1F1B is left."""
    job = eager_7b(global_batch_size=64, parallel={"tp": 1, "pp": 16, "dp": 2, "micro_batch_size": 2})
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] * (case.name != "8")) for case in CASES[:3]],
    ids=lambda c: c.name,
)
def test_the_simulated_winner_is_planned_and_the_closed_forms_best_is_close(case: Case) -> None:
    job = gpt_7b(model={"preset": case.preset}, global_batch_size=case.global_batch_size)
    problem = read_problem(make_inventory(case.sizes), job)
    found = search(problem, 600.0).found
    modes = [choose_schedule(job, problem.coefficients(each.placement.candidate), each.placement) for each in found]
    seconds = [mode.step_s for mode in modes if mode is not None]
    assert len(seconds) > 10
    assert seconds[0] < 1.03 * min(seconds)
    assert rank_improved(problem, found)[0].mode.step_s <= min(seconds)
