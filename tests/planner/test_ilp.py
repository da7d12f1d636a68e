"""The integer program against brute force."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from planner.bounds import Bounds
from planner.closed_form import blocks_step_s
from planner.ilp import Question, Solution, SolverName, solve
from planner.terms import Terms
from tests.planner.enumerator import best_by_enumeration, random_terms

ANY_PACE_S = 1e3


def ask(terms: Terms, crossing: bool = False, solver: SolverName | None = None) -> Solution:
    """The program's answer at any pace."""
    return solve(Question(terms, 0.0, ANY_PACE_S, crossing=crossing), solver=solver)


def price(terms: Terms, solution: Solution) -> float:
    """Closed-form seconds of what the solver decided, with a check that it may."""
    assert solution.blocks is not None
    assert solution.replicas is not None
    for c, places in enumerate(terms.places):
        assert sum(row[c] for row in solution.replicas) <= places
    sites = [block.site for block in solution.blocks for _ in block.layers]
    layers = [held for block in solution.blocks for held in block.layers]
    assert sum(layers) == terms.num_layers
    for s, (site, row) in enumerate(zip(sites, solution.replicas, strict=True)):
        assert sum(row) == terms.candidate.dp
        assert {c for c, replicas in enumerate(row) if replicas} == set(site)
        assert all(1 <= layers[s] <= terms.capacity[s][c] for c in site)
    return blocks_step_s(terms, solution.blocks)


def assert_equals_enumeration(seed: int, crossing: bool, solver: SolverName) -> None:
    """Same least seconds as brute force, a true bound, or infeasible where brute force finds nothing."""
    terms = random_terms(seed)
    best, bound = best_by_enumeration(terms, crossing), Bounds(terms, mixed=crossing).least_s
    solution = ask(terms, crossing, solver)
    if best is None:
        assert solution.status == "infeasible", seed
        return
    assert bound is not None, seed
    assert bound <= best * (1 + 1e-9), seed
    assert solution.status == "optimal", seed
    assert price(terms, solution) == pytest.approx(best, rel=1e-6), seed
    assert solution.bound_s == pytest.approx(best, rel=1e-6), seed


@pytest.mark.parametrize("seeds", [range(start, start + 30) for start in range(0, 240, 30)], ids=lambda r: str(r[0]))
def test_highs_finds_what_brute_force_finds(seeds: Sequence[int]) -> None:
    for seed in seeds:
        assert_equals_enumeration(seed, False, "HiGHS")


@pytest.mark.parametrize("seeds", [range(start, start + 20) for start in range(0, 80, 20)], ids=lambda r: str(r[0]))
def test_highs_finds_what_brute_force_finds_with_a_stage_over_clusters(seeds: Sequence[int]) -> None:
    for seed in seeds:
        assert_equals_enumeration(seed, True, "HiGHS")


def test_cbc_finds_what_brute_force_finds() -> None:
    for seed in range(0, 240, 8):
        assert_equals_enumeration(seed, seed % 16 == 0, "CBC")
