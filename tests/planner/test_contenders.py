"""Contenders by themselves: the fastest and the runners-up are those that simulating every mode of each would tell."""

from __future__ import annotations

import random

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.plan import Crossing
from planner.problem.candidates import Candidate
from planner.problem.problem import Problem, read_problem
from planner.schedule import placement_simulator
from planner.schedule.placement_simulator import PlacementSimulator
from planner.schedule.run_mode import RunMode, simplest
from planner.schedule.runners_up import NEXT_BEST, Contender, fastest_first, rank_contenders
from planner.search.branch_and_bound import search
from planner.search.placement import Placement, PricedPlacement
from tests.planner.fleets import bed_job, cpu_inventory, random_inventory
from tests.seeds import seeds


def searched(seed: int) -> tuple[Problem, tuple[PricedPlacement, ...]]:
    """A random fleet of two or three clusters, a job that leaves all open, and what the search found."""
    draw = random.Random(seed)
    job = bed_job(parallel={}, global_batch_size=draw.choice((24, 32, 96)))
    problem = read_problem(random_inventory(seed), job)
    return problem, search(problem, 60.0).found


def simulator_of(problem: Problem, found: PricedPlacement) -> PlacementSimulator:
    """Simulates the placement under any schedule."""
    return PlacementSimulator(problem.job, problem.coefficients(found.placement.candidate), found.placement)


def exhaustive(problem: Problem, found: tuple[PricedPlacement, ...]) -> list[Contender]:
    """As `rank_contenders`, with nothing left out: every mode simulated, whatever its bound."""
    contenders = []
    for each in found:
        simulator = simulator_of(problem, each)
        run = [simulator.timed(mode) for mode in simulator.modes()]
        if run:
            contenders.append(Contender(each, simplest(run), each.placement.crossing(problem.fleet)))
    order = fastest_first(contenders, [contender.mode.step_s for contender in contenders])
    ranked = [contenders[at] for at in order[: 1 + NEXT_BEST]]
    for at in order[1 + NEXT_BEST :]:
        if contenders[at].crossing not in {each.crossing for each in ranked}:
            ranked.append(contenders[at])
    return ranked


@pytest.mark.parametrize("seed", seeds(30, few=3))
def test_bounds_leave_out_nothing_that_would_be_told(seed: int) -> None:
    problem, found = searched(seed)
    assert rank_contenders(problem, found) == exhaustive(problem, found)


@pytest.mark.parametrize("seed", seeds(10, few=2))
def test_no_way_is_faster_than_its_bound(seed: int) -> None:
    problem, found = searched(seed)
    for each in found:
        simulator = simulator_of(problem, each)
        for mode in simulator.modes():
            assert simulator.timed(mode).step_s >= mode.step_s


@pytest.mark.parametrize("seed", seeds(10, few=2))
def test_look_without_exchanges_agrees_with_the_whole_bound(seed: int) -> None:
    problem, found = searched(seed)
    least_s = [simulator_of(problem, each).least_s for each in found]
    for each, own_s in zip(found, least_s, strict=True):
        may_take_less = [simulator_of(problem, each).may_take_less(within_s) for within_s in least_s]
        assert may_take_less == [own_s < within_s for within_s in least_s]


def test_seconds_do_not_depend_on_the_modes_timed_before() -> None:
    problem, found = searched(0)
    kept = placement_simulator.simulator_of(problem, found[0].placement)
    modes = kept.modes()
    for mode in modes:
        kept.timed(mode, 0.0)  # beyond which shared ports may be left out
    assert [kept.timed(mode) for mode in modes] == [simulator_of(problem, found[0]).timed(mode) for mode in modes]
    assert placement_simulator.simulator_of(problem, found[0].placement) is kept


def test_best_of_every_other_crossing_stands_behind_the_next_best() -> None:
    problem, found = searched(1)
    ranked = rank_contenders(problem, found)
    told = [each.crossing for each in ranked[1 + NEXT_BEST :]]
    assert len(told) == len(set(told))
    assert {each.crossing for each in ranked} == {each.placement.crossing(problem.fleet) for each in found}


def test_a_schedule_that_nothing_can_run_is_refused() -> None:
    job = bed_job(parallel={"layers": [5, 5], "schedule": "interleaved"})
    problem = read_problem(cpu_inventory([2, 2]), job)
    with pytest.raises(HolmesError, match=r"can run the schedule fixed in job\.yaml"):
        rank_contenders(problem, search(problem, 60.0).found)


def contender(recompute: str, schedule: str, objective_s: float = 1.0, crossing: Crossing = "nothing") -> Contender:
    """A contender of which nothing else matters."""
    candidate = Candidate(1, 2, 1, 1, recompute)  # type: ignore[arg-type]
    placement = Placement(candidate, (1, 1), ((0,), (0,)), (2,))
    mode = RunMode(schedule, 1, (), (1, 1), 1.0)  # type: ignore[arg-type]
    return Contender(PricedPlacement(objective_s, placement), mode, crossing)


def test_of_equal_steps_less_recomputation_then_the_simpler_schedule_wins() -> None:
    contenders = [
        contender("full", "1f1b"),
        contender("selective", "1f1b"),
        contender("none", "zero-bubble"),
        contender("none", "interleaved"),
        contender("none", "eager"),
        contender("none", "gpipe"),
        contender("none", "1f1b", objective_s=2.0),
        contender("none", "1f1b"),
    ]
    assert fastest_first(contenders, [1.0 + 1e-9 * at for at in range(8)]) == [7, 6, 5, 4, 3, 2, 1, 0]


def test_a_faster_step_wins_however_complicated() -> None:
    contenders = [contender("none", "1f1b"), contender("full", "zero-bubble")]
    assert fastest_first(contenders, [1.0, 0.999]) == [1, 0]


def test_of_equally_fast_ways_the_simplest_is_run() -> None:
    plain = RunMode("1f1b", 1, (), (1, 1), 1.0)
    modes = [
        plain._replace(schedule="zero-bubble"),
        plain._replace(schedule="interleaved", chunks=3),
        plain._replace(schedule="interleaved", chunks=2),
        plain._replace(schedule="eager", extra_in_flight=(2,)),
        plain._replace(schedule="eager", extra_in_flight=(1,)),
        plain._replace(step_s=1.0 + 1e-7),
    ]
    while modes:
        assert simplest(modes) == modes.pop()
    assert simplest([plain, plain._replace(schedule="zero-bubble", step_s=0.99)]).schedule == "zero-bubble"
