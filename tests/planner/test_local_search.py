"""What is found around the best contenders: never slower, within memory and job.yaml, and somewhere better."""

from __future__ import annotations

import random
from math import inf

import pytest

from benchmarks.best_simulated import behind_best, draw_fleet
from benchmarks.planner_scale import make_inventory
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job, Parallel
from planner.problem.candidates import enumerate_candidates
from planner.problem.problem import Problem, read_problem
from planner.schedule.local_search import rank_improved
from planner.schedule.placement_simulator import PlacementSimulator
from planner.schedule.runners_up import Contender, rank_contenders
from planner.search.branch_and_bound import search
from planner.search.placement import Placement, PricedPlacement
from tests.planner.drawn_fleets import drawn_fleet, drawn_job
from tests.planner.fleets import GBPS, bed_job, cpu_inventory, gpt_7b, plan_for, random_inventory
from tests.planner.measured_links import measured, with_links


def searched(seed: int, **parallel: object) -> tuple[Problem, tuple[PricedPlacement, ...]]:
    """A random fleet, a small batch, and what the search found."""
    job = bed_job(parallel=parallel, global_batch_size=random.Random(seed).choice((6, 8, 12)))
    problem = read_problem(random_inventory(seed), job)
    return problem, search(problem, 60.0).found


def fits(problem: Problem, contender: Contender) -> bool:
    """Whether memory holds it, and its layers and micro-batches are all there."""
    placement = contender.found.placement
    simulator = PlacementSimulator(problem.job, problem.coefficients(placement.candidate), placement)
    samples = sum(placement.microbatches) * placement.candidate.micro_batch_size
    whole = sum(placement.layers) == problem.job.model.num_layers and samples == problem.job.global_batch_size
    return whole and simulator.fits(contender.mode)


def test_what_is_found_is_never_slower_and_somewhere_better() -> None:
    better = 0
    for seed in range(8):
        problem, found = searched(seed)
        before, after = rank_contenders(problem, found), rank_improved(problem, found)
        assert after[0].mode.step_s <= before[0].mode.step_s
        assert all(fits(problem, each) for each in after)
        better += after[0].mode.step_s < before[0].mode.step_s * 0.999
    assert better


def test_a_fixed_cut_and_a_fixed_schedule_are_kept() -> None:
    problem, found = searched(3, layers=[4, 3, 3], schedule="1f1b")
    improved = rank_improved(problem, found)
    assert {each.mode.schedule for each in improved} == {"1f1b"}
    assert {each.found.placement.layers for each in improved} == {(4, 3, 3)}


@pytest.mark.slow
def test_a_climb_that_begins_deep_in_flight_comes_to_the_best_shallow_one() -> None:
    # Its best is one more or two in flight, a layer away from where seven are best: 3.1 % less than what is near those.
    assert behind_best(*draw_fleet(44)) < 0.001


def test_two_stages_change_places_and_cut_at_once() -> None:
    # Three layers on the faster cluster come first; the best has two there, with the head: 3 % less.
    emulate = {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02, "slowdown": {"a": 1.0, "b": 1.5}}
    model = {"num_layers": 4, "hidden_size": 352, "num_heads": 8, "seq_length": 128}
    fixed = {"recompute": "none", "zero": 1}
    job = bed_job(model=model, parallel=fixed, global_batch_size=4, compute={"emulate": emulate})
    assert behind_best(cpu_inventory([1, 1], 2.0, 3.0), job) < 0.001


def test_of_a_long_pipeline_the_fullest_stages_come_first() -> None:
    # Seven hosts in clusters of their own, every other one faster: 0.615 s in the order in which the search has them.
    job = gpt_7b(global_batch_size=64, parallel={"tp": 2, "pp": 7, "dp": 4, "micro_batch_size": 1, "recompute": "none"})
    problem = read_problem(make_inventory((1,) * 7), job)
    found = search(problem, 60.0).found
    before, after = rank_contenders(problem, found)[0], rank_improved(problem, found)[0]
    layers = after.found.placement.layers
    assert list(layers) == sorted(layers, reverse=True)
    assert after.mode.step_s < 0.95 * before.mode.step_s
    assert fits(problem, after)


def three_clusters(
    latencies_s: dict[str, float], slowdown: dict[str, float], num_layers: int = 3
) -> tuple[Inventory, Job]:
    """A host each, at different distances; the farther, the more a wire carries."""
    farther = sorted(latencies_s, key=lambda pair: latencies_s[pair])
    rates = {pair: (3 + farther.index(pair) / 10) * GBPS for pair in farther}
    links = [measured((f"{pair[0]}1", f"{pair[1]}1"), rates[pair], latencies_s[pair]) for pair in farther]
    emulate = {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02, "slowdown": slowdown}
    job = bed_job(
        model={"num_layers": num_layers, "hidden_size": 352, "num_heads": 8, "seq_length": 128},
        parallel={"recompute": "none", "zero": 1},
        global_batch_size=4,
        compute={"emulate": emulate},
    )
    return with_links(cpu_inventory((1, 1, 1), 4.0, 20.0), *links), job


def test_replicas_are_in_clusters_that_are_near_rather_than_joined_by_a_wide_wire() -> None:
    inventory, job = three_clusters({"ab": 1e-5, "ac": 1e-3, "bc": 0.05}, {"a": 3.0, "b": 1.0, "c": 3.0})
    plan = plan_for(inventory, job)
    assert (plan.dp, {rank.cluster for rank in plan.ranks}) == (2, {"a", "b"})


def test_a_stage_moves_to_hosts_that_the_closed_form_left_out() -> None:
    inventory, job = three_clusters({"ab": 0.05, "ac": 1e-5, "bc": 1e-5}, {"a": 3.0, "b": 1.5, "c": 1.0}, num_layers=4)
    plan = plan_for(inventory, job)
    assert [stage.num_layers for stage in plan.stages] == [2, 2]
    assert {rank.cluster for rank in plan.ranks} == {"b", "c"}


@pytest.mark.slow
def test_runs_of_stages_on_the_same_hosts_change_places() -> None:
    """On eight H100 and L40S hosts a climb ended 6 % above the best: both H100 stages had to move at once."""
    job = drawn_job(38).model_copy(
        update={"parallel": Parallel(tp=1, pp=6, dp=8, micro_batch_size=1, recompute="none")}
    )
    problem = read_problem(drawn_fleet(38), job)
    (candidate,) = enumerate_candidates(job, problem.fleet)
    sites = tuple((c,) * 8 for c in (2, 0, 0, 1, 1, 3))
    start = PricedPlacement(inf, Placement(candidate, (4, 10, 11, 3, 3, 1), sites, (64,) * 8))

    before, after = (rank(problem, [start])[0].mode.step_s for rank in (rank_contenders, rank_improved))

    assert after < 0.95 * before
    assert after == pytest.approx(10.704, rel=0.01)


@pytest.mark.parametrize("order", [(2, 3, 1, 0), (1, 3, 0, 2)])
def test_runs_of_stages_are_tried_in_every_order(order: tuple[int, ...]) -> None:
    """With three of four runs to move at once, a climb ended 1.5 % above the best that other listings of hosts had."""
    job = drawn_job(27).model_copy(
        update={"parallel": Parallel(tp=2, pp=4, dp=8, micro_batch_size=1, recompute="none")}
    )
    problem = read_problem(drawn_fleet(27), job)
    (candidate,) = enumerate_candidates(job, problem.fleet)
    held = {0: 1, 1: 12, 2: 14, 3: 5}  # of class 0, two hosts of L40S; 1 and 2 are H100, 3 is A100
    sites = tuple((c,) * 8 for c in order)
    start = PricedPlacement(inf, Placement(candidate, tuple(held[c] for c in order), sites, (16,) * 8))

    assert rank_improved(problem, [start])[0].mode.step_s == pytest.approx(1.666, rel=1e-3)


def test_long_pipelines_start_with_the_fullest_stages_first() -> None:
    """With its degree of tensor parallelism fixed, a plan had 7 stages and was 4 % slower: 8 were not begun well."""
    fleet, job = (
        drawn_fleet(84),
        drawn_job(84).model_copy(update={"parallel": Parallel(tp=1, dp=1, micro_batch_size=1)}),
    )
    assert plan_for(fleet, job).prediction.step_s == pytest.approx(0.2464, rel=1e-3)


def test_climbs_of_slow_starts_leave_work_for_changes_of_fast_ones() -> None:
    """Pipelines of nine and ten stages, twice as slow as the best, used up all work: the plan was 3 % slower."""
    fleet, job = drawn_fleet(98), drawn_job(98).model_copy(update={"parallel": Parallel(tp=1)})
    assert plan_for(fleet, job).prediction.step_s == pytest.approx(0.5624, rel=1e-3)
