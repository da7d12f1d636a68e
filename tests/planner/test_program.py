"""The integer program against brute force with both solvers, and what it promises besides."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from planner.cost.collectives import PassTimes
from planner.problem.candidates import Candidate
from planner.problem.coefficients import Coefficients
from planner.search.closed_form import blocks_step_s
from planner.search.lower_bounds import LowerBounds
from planner.search.program import build
from planner.search.program_spec import ProgramSpec, make_sites
from planner.search.solve import Solution, SolverName, solve, solve_preferred, solver_name
from tests.planner.enumerator import best_by_enumeration, random_coefficients, random_cut
from tests.seeds import seed_ranges

ANY_PACE_S = 20.0  # slower than any stage of `random_coefficients`, but not so slow that seconds vanish in tolerances
SOLVERS: tuple[SolverName, ...] = ("HiGHS", "CBC")


def chunks(stop: int, step: int) -> list[Any]:
    """Seeds below `stop`, `step` at a time, with each solver; CBC, a process a program, is slow."""
    return [
        pytest.param(range(start, start + step), solver, marks=[pytest.mark.slow] * slow, id=f"{start}-{solver}")
        for start in range(0, stop, step)
        for solver, slow in (("HiGHS", start > 0), ("CBC", True))
    ]


def ask(
    coeffs: Coefficients,
    crossing: bool = False,
    solver: SolverName | None = None,
    fixed_layers: tuple[int, ...] | None = None,
) -> Solution:
    """The program's answer at any pace."""
    return solve(ProgramSpec(coeffs, 0.0, ANY_PACE_S, crossing=crossing, fixed_layers=fixed_layers), solver=solver)


def price(coeffs: Coefficients, solution: Solution) -> float:
    """Closed-form seconds of what the solver decided, with a check that it may."""
    assert solution.blocks is not None
    assert solution.replicas is not None
    for c, group_slots in enumerate(coeffs.group_slots):
        assert sum(row[c] for row in solution.replicas) <= group_slots
    sites = [block.site for block in solution.blocks for _ in block.layers]
    layers = [held for block in solution.blocks for held in block.layers]
    assert sum(layers) == coeffs.num_layers
    for s, (site, row) in enumerate(zip(sites, solution.replicas, strict=True)):
        assert sum(row) == coeffs.candidate.dp
        assert {c for c, replicas in enumerate(row) if replicas} == set(site)
        assert all(1 <= layers[s] <= coeffs.capacity[s][c] for c in site)
    return blocks_step_s(coeffs, solution.blocks)


def assert_equals_enumeration(
    coeffs: Coefficients, crossing: bool, solver: SolverName, fixed_layers: tuple[int, ...] | None = None
) -> None:
    """Same least seconds as brute force, and a true bound; or infeasible where brute force finds nothing."""
    best = best_by_enumeration(coeffs, crossing, fixed_layers)
    solution = ask(coeffs, crossing, solver, fixed_layers)
    if best is None:
        assert solution.status == "infeasible"
        return
    assert solution.status == "optimal"
    assert price(coeffs, solution) == pytest.approx(best, rel=1e-6)
    assert solution.bound_s == pytest.approx(best, rel=1e-6)


def hard_coefficients() -> Coefficients:
    """Fourteen stages on four classes of different speed: too much for a fraction of a second."""
    speed = (1.0, 1.37, 2.11, 3.19)
    return replace(
        random_coefficients(0),
        candidate=Candidate(1, 14, 3, 1),
        num_layers=61,
        total_microbatches=120,
        cluster=(0, 1, 2, 3),
        group_slots=(11, 12, 13, 14),
        group_slots_per_host=(1, 1, 1, 1),
        memory_bytes=(None,) * 4,
        capacity=((30,) * 4,) * 14,
        layer=tuple(PassTimes(each / 3, 2 * each / 3) for each in speed),
        head=tuple(PassTimes(each / 3, 2 * each / 3) for each in speed),
        net_names=("IB",) * 4,
        fabric_edge_s=(0.1, 0.2, 0.3, 0.4),
        shared_edge_s=(1.3, 1.7, 1.1, 1.9),
        fabric_port_s=(0.1, 0.2, 0.3, 0.4),
        shared_port_s=(1.3, 1.7, 1.1, 1.9),
        has_one_nic=(False,) * 4,
        fabric_sync_s_per_byte=speed,
        shared_sync_s_per_byte=(9.0, 8.0, 7.0, 6.0),
        inside_sync_s_per_byte=(0.1,) * 4,
    )


@pytest.mark.parametrize(("seeds", "solver"), chunks(240, 30))
def test_program_finds_what_brute_force_finds(seeds: Sequence[int], solver: SolverName) -> None:
    for seed in seeds:
        assert_equals_enumeration(random_coefficients(seed), False, solver)


@pytest.mark.parametrize(("seeds", "solver"), chunks(40, 20))
def test_program_finds_what_brute_force_finds_with_a_stage_over_clusters(
    seeds: Sequence[int], solver: SolverName
) -> None:
    for seed in seeds:
        assert_equals_enumeration(random_coefficients(seed), True, solver)


@pytest.mark.parametrize(("seeds", "solver"), chunks(40, 20))
def test_program_finds_what_brute_force_finds_with_a_fixed_cut(seeds: Sequence[int], solver: SolverName) -> None:
    for seed in seeds:
        coeffs = random_coefficients(seed)
        assert_equals_enumeration(coeffs, seed % 4 == 0, solver, random_cut(coeffs, seed))


@pytest.mark.slow
def test_random_instances_are_of_all_kinds() -> None:
    """Feasible or not, limited by memory or not, on clusters whose classes differ, with stages over several."""
    instances = [random_coefficients(seed) for seed in range(240)]
    best = [best_by_enumeration(coeffs) for coeffs in instances]
    assert 40 < sum(seconds is None for seconds in best) < 160
    roomy = [
        replace(coeffs, capacity=((coeffs.num_layers,) * len(coeffs.group_slots),) * len(coeffs.capacity))
        for coeffs in instances
    ]
    without_limits = [best_by_enumeration(coeffs) for coeffs in roomy]
    assert sum(limited != free for limited, free in zip(best, without_limits, strict=True)) > 40
    assert {len(set(coeffs.cluster)) for coeffs in instances} == {1, 2, 3}
    assert any(best_by_enumeration(coeffs, crossing=True) is not None for coeffs in instances)


@pytest.mark.parametrize("of", seed_ranges(240, few=10))
@pytest.mark.parametrize("mixed", [False, True])
def test_no_placement_beats_the_bounds(mixed: bool, of: range) -> None:
    for seed in of:
        coeffs = random_coefficients(seed)
        best, bound = best_by_enumeration(coeffs, mixed), LowerBounds(coeffs, mixed).full_bound_s
        if best is not None:
            assert bound is not None, seed
            assert bound <= best * (1 + 1e-9), seed


@pytest.mark.parametrize("solver", SOLVERS)
def test_preferred_placement_is_as_good_and_starts_on_the_first_class(solver: SolverName) -> None:
    coeffs = replace(
        random_coefficients(1),
        candidate=Candidate(1, 2, 1, 1),
        num_layers=4,
        cluster=(0, 1),
        group_slots=(1, 1),
        group_slots_per_host=(1, 1),
        capacity=((4, 4),) * 2,
        layer=(PassTimes(0.5, 0.5),) * 2,
        head=(PassTimes(0.0, 0.0),) * 2,
        net_names=("IB", "IB"),
        fabric_edge_s=(1.0, 1.0),
        shared_edge_s=(1.0, 1.0),
    )
    best_s = price(coeffs, ask(coeffs))
    chosen = solve_preferred(ProgramSpec(coeffs, 0.0, ANY_PACE_S, at_most_s=best_s * (1 + 1e-6)), solver=solver)
    assert price(coeffs, chosen) == pytest.approx(best_s)
    assert chosen.replicas == ((1, 0), (0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("crossing", [False, True])
def test_solvers_prefer_the_same_of_many_equals(crossing: bool) -> None:
    compared = 0
    for seed in range(40):
        coeffs, n = random_coefficients(seed), len(random_coefficients(seed).group_slots)
        alike = replace(
            coeffs,
            layer=(PassTimes(0.5, 0.5),) * n,
            head=(PassTimes(0.0, 0.0),) * n,
            net_names=(None,) * n,
            fabric_edge_s=(1.0,) * n,
            shared_edge_s=(1.0,) * n,
            fabric_sync_s_per_byte=(0.1,) * n,
            shared_sync_s_per_byte=(0.1,) * n,
            inside_sync_s_per_byte=(0.1,) * n,
        )
        found = ask(alike, crossing)
        if found.status == "optimal":
            spec = ProgramSpec(alike, 0.0, ANY_PACE_S, at_most_s=price(alike, found) * (1 + 1e-6), crossing=crossing)
            one, other = (solve_preferred(spec, solver=solver) for solver in SOLVERS)
            assert (one.blocks, one.replicas) == (other.blocks, other.replicas), seed
            compared += 1
    assert compared > 3


def test_a_time_limit_is_not_taken_for_infeasible() -> None:
    hard = ProgramSpec(hard_coefficients(), 0.0, ANY_PACE_S)
    assert solve(hard, time_limit_s=0.01).status == "time limit"
    assert ask(replace(hard_coefficients(), capacity=((4,) * 4,) * 14)).status == "infeasible"


@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_print_nothing(solver: SolverName, capfd: pytest.CaptureFixture[str]) -> None:
    ask(random_coefficients(2), solver=solver)
    ctypes.CDLL(None).fflush(None)  # what C's own buffer holds back from a file until the process ends
    assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("fixed", [False, True])
def test_every_constraint_has_a_name_of_its_own(fixed: bool) -> None:
    coeffs = random_coefficients(3)
    cut = random_cut(coeffs, 3) if fixed else None
    program = build(ProgramSpec(coeffs, 0.0, ANY_PACE_S, crossing=True, fixed_layers=cut))
    names = list(program.model.constraints)
    assert len(set(names)) == len(names) > 10
    assert not any(name.startswith("_C") for name in names)


def test_highs_is_taken_where_installed() -> None:
    assert solver_name() == "HiGHS"


@pytest.mark.slow
def test_cbc_is_taken_where_highs_is_not_installed() -> None:
    script = (
        "import sys; sys.modules['highspy'] = None; from planner.search.solve import solver_name; print(solver_name())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ), timeout=600, check=True
    )
    assert done.stdout == "CBC\n"


def test_few_classes_share_stages_in_every_way_and_many_in_pairs_of_clusters() -> None:
    few = replace(random_coefficients(0), candidate=Candidate(1, 1, 4, 1), group_slots=(1,) * 4, cluster=(0, 0, 1, 2))
    assert len(make_sites(few, True)) == 15
    assert make_sites(few, False) == [(0,), (1,), (2,), (3,), (0, 1)]
    many = replace(few, group_slots=(1,) * 6, cluster=(0, 0, 1, 1, 2, 3))
    assert make_sites(many, False) == [(0,), (1,), (2,), (3,), (4,), (5,), (0, 1), (2, 3)]
    assert {(0, 1, 2, 3), (4, 5)} <= set(make_sites(many, True))
    assert (0, 2) not in make_sites(many, True)
