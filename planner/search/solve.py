"""Solving integer programs: HiGHS or CBC, time limits, and the choice among placements that are equally good.

Ties are broken by `prefer`: among optimal placements one that uses sites early in the list of sites, then starts on an
early site, then holds more layers on early sites; and by `single_out`: of those the one of least weight, where every
decision has a weight of its own, arbitrary but always the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import pulp

from holmes_core.errors import HolmesError
from planner.search.closed_form import Block
from planner.search.decode import decode
from planner.search.program import Program, build
from planner.search.program_spec import ProgramSpec

CUTOFF = 1e-3  # relative: how far above `at_most_s` the row that cuts off worse placements is, for the solvers' sake

SolverName = Literal["HiGHS", "CBC"]


@dataclass(frozen=True)
class Solution:
    """A solver's result. `blocks` and `replicas`, by stage and class, are None when it found no placement.

    `bound_s` is a lower bound on the placements that were asked for, as far as proved; None when nothing was.
    """

    status: Literal["optimal", "infeasible", "time limit"]
    blocks: tuple[Block, ...] | None
    replicas: tuple[tuple[int, ...], ...] | None
    bound_s: float | None


def solve(spec: ProgramSpec, time_limit_s: float | None = None, solver: SolverName | None = None) -> Solution:
    """The placement of least closed-form seconds. `solver` None takes HiGHS where installed, else CBC."""
    with _quiet():
        program = build(spec)
        if spec.at_most_s is not None:
            _cut_off(program, spec.at_most_s * (1 + CUTOFF))
        return _run(program, time_limit_s, solver)


def solve_preferred(spec: ProgramSpec, time_limit_s: float | None = None, solver: SolverName | None = None) -> Solution:
    """Among the placements that take no longer than `spec.at_most_s`, the one `prefer` and `single_out` choose."""
    assert spec.at_most_s is not None
    with _quiet():
        program = build(spec)
        _cut_off(program, spec.at_most_s)
        prefer(program)
        solution = _run(program, time_limit_s, solver)
        if solution.status != "optimal":
            return solution
        single_out(program)
        return _run(program, time_limit_s, solver)


def write_lp(spec: ProgramSpec, path: Path) -> None:
    """Writes the program to `path` in LP format, in seconds, every constraint by its name. Raises HolmesError."""
    try:
        with _quiet():
            build(spec, unit_s=1.0).model.writeLP(str(path))
    except OSError as error:
        raise HolmesError(
            f"{path}: cannot be written: {error.strerror or error}", "choose a folder that exists and is writable"
        ) from None


def solver_name() -> SolverName:
    """The solver `solve` takes by default."""
    return "HiGHS" if pulp.HiGHS(msg=False).available() else "CBC"


def prefer(program: Program) -> None:
    """Replaces the objective: early sites, an early start, then layers early; each above all that follows it."""
    count = len(program.given.sites)
    used = pulp.lpSum((i + 1) * count * used for i, used in enumerate(program.u))
    start = pulp.lpSum(i * first for i, first in enumerate(program.first))
    held = [(i * a, stages) for (i, _, a), stages in program.n.items()]
    held += [(i, on) for (_, i), on in program.y.items()]
    layers = pulp.lpSum(weight * stages for weight, stages in held)
    program.model.setObjective(used + start + layers * _layer_weight(program))


def single_out(program: Program) -> None:
    """Replaces the objective, whose value is kept, by weights that hardly any two placements have the same sum of."""
    kept = program.model.objective
    program.require(kept <= pulp.value(kept) + _layer_weight(program) / 2, "preferred")
    decisions, draw = (*program.n.values(), *program.y.values(), *program.z.values(), *program.r.values()), Random(0)
    program.model.setObjective(pulp.lpSum(draw.random() * decision for decision in decisions))
    program.model.solverModel = None


def _layer_weight(program: Program) -> float:
    """The weight of a layer in `prefer`: all layers together weigh less than a site, which weighs 1 or more."""
    return 1 / (2.0 * len(program.given.sites) * program.given.coeffs.num_layers)


def _cut_off(program: Program, seconds: float) -> None:
    program.require(program.model.objective <= seconds / program.given.unit_s, "at_most")


def _run(program: Program, time_limit_s: float | None, solver: SolverName | None) -> Solution:
    """The solver's result; where HiGHS gives up on the numbers, that of CBC."""
    name = solver or solver_name()
    status = program.model.solve(_engine(name, time_limit_s))
    if name == "HiGHS" and status == pulp.LpStatusNotSolved and _gave_up(program):
        program.model.solverModel = None
        status = program.model.solve(_engine("CBC", time_limit_s))
    if status == pulp.LpStatusInfeasible:
        return Solution("infeasible", None, None, None)
    optimal = program.model.sol_status == pulp.LpSolutionOptimal
    bound_s = _bound_s(program, optimal)
    if not (optimal or program.model.sol_status == pulp.LpSolutionIntegerFeasible):
        return Solution("time limit", None, None, bound_s)
    blocks, replicas = decode(program)
    return Solution("optimal" if optimal else "time limit", blocks, replicas, bound_s)


def _gave_up(program: Program) -> bool:
    """Whether HiGHS ended for another reason than the time limit."""
    return "TimeLimit" not in str(program.model.solverModel.getModelStatus())


def _bound_s(program: Program, optimal: bool) -> float | None:
    """The solver's lower bound in seconds: HiGHS has one, CBC's is its optimum."""
    highs = getattr(program.model, "solverModel", None)
    if highs is not None:
        return float(highs.getInfo().mip_dual_bound) * program.given.unit_s
    return float(pulp.value(program.model.objective)) * program.given.unit_s if optimal else None


def _engine(name: SolverName, time_limit_s: float | None) -> Any:
    """The solver with one thread, no gap allowed, and nothing printed."""
    if name == "HiGHS":
        return pulp.HiGHS(msg=False, threads=1, gapRel=0.0, gapAbs=0.0, timeLimit=time_limit_s, random_seed=0)
    return pulp.PULP_CBC_CMD(msg=False, threads=1, gapRel=0.0, timeLimit=time_limit_s)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides PuLP 3's notices about its next major version, which this project does not admit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
