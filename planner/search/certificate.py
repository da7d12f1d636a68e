"""The certificate of a written plan: one integer program of its degrees, which any solver can check.

The search proves its answer by bounds, most of them without a solver. The certificate is the program of the plan's
degrees, micro-batch and form (see refinements.py) at all paces that are not slower than the best placement known. Its
optimum is the least closed form of any such placement.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from planner.problem.problem import Problem
from planner.search.lower_bounds import LowerBounds
from planner.search.placement import Placement
from planner.search.program import build
from planner.search.program_spec import ProgramSpec, make_sites
from planner.search.refinements import MAX_SITES, MIN_PROGRAM_S, Form, fixed_cut
from planner.search.replica_program import build_replicas
from planner.search.solve import placement_of, solve, solve_replicas, write_lp
from planner.time_left import TimeLeft
from planner.tolerances import RELATIVE_TOLERANCE


@dataclass(frozen=True)
class Certificate:
    """The least closed-form seconds of placements with the plan's degrees, from the last of `programs`.

    None if the time limit ended that program, or if no program has these degrees. If it has no solution, a better
    placement is known: for stages over several clusters, programs price every edge as the slowest, ranks exactly.
    """

    least_s: float | None
    programs: int


def certify(
    problem: Problem, placement: Placement, known_s: float, left: TimeLeft, lp: Path | None = None
) -> Certificate:
    """Return the certificate of `placement`; `known_s` are the seconds of a known placement with its degrees.

    `lp` names a file for the program.

    Raises:
        HolmesError: That file cannot be written.
    """
    coeffs = problem.coefficients(placement.candidate)
    fixed_layers = fixed_cut(problem.job, placement.candidate)
    form = form_of(placement)
    if form == "whole replicas":
        if lp is not None:
            write_lp(lambda: build_replicas(coeffs, fixed_layers), lp)
        return Certificate(solve_replicas(coeffs, fixed_layers, max(MIN_PROGRAM_S, left.seconds)), 1)
    crossing = form == "mixed"
    if fixed_layers is not None:
        last, programs = ProgramSpec(coeffs, at_most_s=known_s, fixed_layers=fixed_layers, crossing=crossing), 0
    else:
        bounds = LowerBounds(coeffs, crossing)
        if bounds.exchange_bound_s is None or len(make_sites(coeffs, crossing)) > MAX_SITES:
            return Certificate(None, 0)
        known_s, programs = _improved_s(bounds, known_s, left)
        last = _spec_within(bounds, known_s)
    if lp is not None:
        write_lp(lambda: build(last, unit_s=1.0), lp)
    solution = solve(last, max(MIN_PROGRAM_S, left.seconds))
    found = placement_of(last, solution)
    if solution.status == "optimal" and found is not None:
        return Certificate(found.objective_s, programs + 1)
    return Certificate(known_s if solution.status == "infeasible" else None, programs + 1)


def form_of(placement: Placement) -> Form:
    """Return the form of a placement, as in the branches of the search."""
    if all(len(set(row)) == 1 for row in placement.sites):
        return "blocks"
    whole = all(len(set(column)) == 1 for column in zip(*placement.sites, strict=True))
    return "whole replicas" if whole else "mixed"


def _improved_s(bounds: LowerBounds, known_s: float, left: TimeLeft) -> tuple[float, int]:
    """Return the seconds of the best placement found at one pace after another, and the number of programs solved.

    Programs of a single pace are quick, and a better known placement makes the program of all paces smaller.
    """
    programs = 0
    for pace_s in bounds.paces_s[bounds.first_pace :]:
        if left.is_over or bounds.from_pace_s(pace_s) >= known_s:
            break
        if bounds.at_pace_s(pace_s) < known_s * (1 - RELATIVE_TOLERANCE):
            spec = _spec_of(bounds, pace_s, pace_s, known_s)
            found = placement_of(spec, solve(spec, left.seconds))
            known_s, programs = min(known_s, found.objective_s) if found else known_s, programs + 1
    return known_s, programs


def _spec_within(bounds: LowerBounds, known_s: float) -> ProgramSpec:
    """Return the program of all paces at which a placement may take at most `known_s`, or at least of the first."""
    paces, within_s = bounds.paces_s[bounds.first_pace :], known_s * (1 + RELATIVE_TOLERANCE)
    near = takewhile(lambda pace_s: bounds.from_pace_s(pace_s) <= within_s, paces)
    held = [pace_s for pace_s in near if bounds.at_pace_s(pace_s) <= within_s] or paces[:1]
    return _spec_of(bounds, held[0], held[-1], known_s)


def _spec_of(bounds: LowerBounds, slow_s: float, slowest_s: float, known_s: float) -> ProgramSpec:
    least_sync_s = bounds.least_sync_s(bounds.within(slowest_s))
    return ProgramSpec(bounds.coeffs, slow_s, slowest_s, known_s, least_sync_s, bounds.mixed)
