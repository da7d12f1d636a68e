"""The integer program against brute force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from planner.candidates import Candidate
from planner.closed_form import lower_bound_s, step_s
from planner.ilp import Solution, SolverName, build, make_sites, solve, solver_name
from planner.terms import Terms
from tests.planner.enumerator import best_by_enumeration, random_terms


def price(terms: Terms, solution: Solution) -> float:
    """Closed-form seconds of what the solver decided, with a check that it may."""
    assert solution.layers is not None
    assert solution.replicas is not None
    for c, places in enumerate(terms.places):
        assert sum(row[c] for row in solution.replicas) <= places
    sites = [tuple(c for c, count in enumerate(row) for _ in range(count)) for row in solution.replicas]
    for s, held in enumerate(solution.layers):
        assert all(1 <= held <= terms.capacity[s][c] for c in sites[s])
    return step_s(terms, solution.layers, sites)


def hard_terms() -> Terms:
    """Fourteen stages on four clusters of different speed: too much for a fraction of a second."""
    speed = (1.0, 1.37, 2.11, 3.19)
    return replace(
        random_terms(0), candidate=Candidate(1, 14, 3, 1), num_layers=61, num_microbatches=40, places=(11, 12, 13, 14),
        cluster_names=("a", "b", "c", "d"), capacity=((30,) * 4,) * 14, layer_s=speed, head_s=speed,
        fabric_edge_s=(0.1, 0.2, 0.3, 0.4), shared_edge_s=(1.3, 1.7, 1.1, 1.9), stage_groups_per_nic=(1, 1, 1, 1),
        fabric_sync_s_per_byte=speed, shared_sync_s_per_byte=(9.0, 8.0, 7.0, 6.0),
    )  # fmt: skip


def assert_equals_enumeration(seed: int, solver: SolverName) -> None:
    """Same least seconds as brute force, a true bound, or infeasible where brute force finds nothing."""
    terms = random_terms(seed)
    best, bound = best_by_enumeration(terms), lower_bound_s(terms)
    solution = solve(terms, least_s=bound or 0.0, solver=solver)
    if best is None:
        assert solution.status == "infeasible"
        return
    assert bound is not None
    assert bound <= best * (1 + 1e-9)
    assert solution.status == "optimal"
    assert price(terms, solution) == pytest.approx(best, rel=1e-6)
    assert solution.bound_s == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seeds", [range(start, start + 20) for start in range(0, 160, 20)], ids=lambda r: str(r[0]))
def test_highs_finds_what_brute_force_finds(seeds: Sequence[int]) -> None:
    for seed in seeds:
        assert_equals_enumeration(seed, "HiGHS")


def test_cbc_finds_what_brute_force_finds() -> None:
    for seed in range(0, 160, 8):
        assert_equals_enumeration(seed, "CBC")


def test_instances_include_infeasible_ones_and_stages_over_several_clusters() -> None:
    found = [solve(random_terms(seed)) for seed in range(20)]
    assert any(solution.status == "infeasible" for solution in found)
    assert any(sum(count > 0 for count in row) > 1 for solution in found for row in solution.replicas or ())


def test_fixed_cut_is_kept() -> None:
    terms = random_terms(3)
    terms = replace(
        terms, candidate=replace(terms.candidate, pp=2, dp=1), num_layers=6, capacity=((6,) * len(terms.places),) * 2
    )
    assert solve(terms, (5, 1)).layers == (5, 1)


def test_preferred_placement_is_as_good_and_starts_on_the_first_cluster() -> None:
    terms = random_terms(1)
    same = (1.0,) * 2
    terms = replace(
        terms, candidate=replace(terms.candidate, pp=2, dp=1), num_layers=4, places=(1, 1), capacity=((4, 4),) * 2,
        layer_s=same, head_s=(0.0, 0.0), fabric_edge_s=same, shared_edge_s=same, fabric_sync_s_per_byte=(0.0, 0.0),
        shared_sync_s_per_byte=(0.0, 0.0), stage_groups_per_nic=(1, 1), cluster_names=("a", "b"),
    )  # fmt: skip
    best_s = price(terms, solve(terms))
    preferred = solve(terms, at_most_s=best_s)
    assert price(terms, preferred) == pytest.approx(best_s)
    assert preferred.layers == (2, 2)
    assert preferred.replicas == ((1, 0), (0, 1))


def test_a_time_limit_is_told_apart_from_infeasible() -> None:
    terms = replace(hard_terms(), capacity=((30,) * 4,) * 14)
    assert solve(terms, time_limit_s=0.2).status == "time limit"
    assert solve(replace(terms, capacity=((2,) * 4,) * 14), time_limit_s=20).status == "infeasible"


def test_solvers_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    solve(random_terms(2), solver="HiGHS")
    solve(random_terms(2), solver="CBC")
    assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_constraint_has_its_own_name() -> None:
    names = list(build(random_terms(2)).model.constraints)
    assert all(not name.startswith("_C") for name in names)


def test_highs_is_taken_where_installed() -> None:
    assert solver_name() == "HiGHS"


def test_many_clusters_keep_sites_of_neighbours() -> None:
    terms = replace(random_terms(0), places=(1,) * 7)
    sites = make_sites(replace(terms, candidate=replace(terms.candidate, dp=3)))
    assert (0, 1, 2) in sites
    assert (0, 1, 3) not in sites
    assert (0, 6) in sites
