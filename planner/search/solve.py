"""Solving integer programs: HiGHS or CBC, time limits, the choice among equally good placements, and decoding.

Two objectives break ties. `prefer` selects, among optimal placements, one that uses sites early in the list, then
starts on an early site, then holds more layers on early sites. `single_out` selects among those by the sum of an
arbitrary but constant weight of each decision.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import pulp

from holmes_core.errors import HolmesError
from planner.problem.coefficients import Coefficients
from planner.problem.exchange_rates import are_even
from planner.search.closed_form import SiteBlock, blocks_step_s
from planner.search.placement import PricedPlacement, from_blocks
from planner.search.program import Program, build
from planner.search.program_spec import ProgramSpec
from planner.search.replica_program import ReplicaProgram, build_replicas

CUTOFF = 1e-3  # relative margin above `at_most_s` for the row that excludes worse placements, as solvers need one

SolverName = Literal["HiGHS", "CBC"]


@dataclass(frozen=True)
class Solution:
    """A solver's result. `blocks` and `replicas`, by stage and class, are None if it found no placement.

    `bound_s` is the proved lower bound on the placements of the spec; None if nothing was proved.
    """

    status: Literal["optimal", "infeasible", "time limit"]
    blocks: tuple[SiteBlock, ...] | None
    replicas: tuple[tuple[int, ...], ...] | None
    bound_s: float | None


def solve(spec: ProgramSpec, time_limit_s: float | None = None, solver: SolverName | None = None) -> Solution:
    """Return the placement with the least closed-form seconds. `solver` None means HiGHS if installed, else CBC."""
    with quiet():
        program = build(spec)
        if spec.at_most_s is not None:
            _cut_off(program, spec.at_most_s * (1 + CUTOFF))
        return _run(program, time_limit_s, solver)


def solve_preferred(spec: ProgramSpec, time_limit_s: float | None = None, solver: SolverName | None = None) -> Solution:
    """Return the placement of at most `spec.at_most_s` that `prefer` and `single_out` choose."""
    assert spec.at_most_s is not None
    with quiet():
        program = build(spec)
        _cut_off(program, spec.at_most_s)
        prefer(program)
        solution = _run(program, time_limit_s, solver)
        if solution.status != "optimal":
            return solution
        single_out(program)
        return _run(program, time_limit_s, solver)


def placement_of(spec: ProgramSpec, solution: Solution) -> PricedPlacement | None:
    """Return the placement in a solution, priced by the closed form itself rather than by the solver."""
    if solution.blocks is None:
        return None
    coeffs = spec.coeffs
    placement = from_blocks(coeffs.candidate, coeffs.total_microbatches, solution.blocks, solution.replicas)
    return PricedPlacement(blocks_step_s(coeffs, solution.blocks), placement)


def solve_replicas(
    coeffs: Coefficients, fixed_layers: tuple[int, ...] | None, time_limit_s: float, solver: SolverName | None = None
) -> float | None:
    """Return the least closed-form seconds of whole replicas over several classes, by their program, if it has any."""
    with quiet():
        unit_s = sum(coeffs.layer_s) * coeffs.num_microbatches or 1.0
        program = build_replicas(coeffs, fixed_layers, unit_s)
        if program is None:
            return None
        program.model.solve(engine(solver or solver_name(), time_limit_s))
        return program.least_s() if program.model.sol_status == pulp.LpSolutionOptimal else None


def write_lp(make: Callable[[], Program | ReplicaProgram | None], path: Path) -> None:
    """Write the program to `path` in LP format, with every constraint's name.

    Raises:
        HolmesError: The file cannot be written.
    """
    try:
        with quiet():
            program = make()
            if program is not None:
                program.model.writeLP(str(path))
    except OSError as error:
        raise HolmesError(
            f"{path}: cannot be written: {error.strerror or error}", "choose a folder that exists and is writable"
        ) from None


def solver_name() -> SolverName:
    """Return the default solver of `solve`."""
    return "HiGHS" if pulp.HiGHS(msg=False).available() else "CBC"


def prefer(program: Program) -> None:
    """Replace the objective: early sites, an early start, then layers early. Each outweighs all that follow it."""
    count = len(program.given.sites)
    used = pulp.lpSum((i + 1) * count * used for i, used in enumerate(program.u))
    start = pulp.lpSum(i * first for i, first in enumerate(program.first))
    held = [(i * a, stages) for (i, _, a), stages in program.n.items()]
    held += [(i, on) for (_, i), on in program.y.items()]
    layers = pulp.lpSum(weight * stages for weight, stages in held)
    program.model.setObjective(used + start + layers * _layer_weight(program))


def single_out(program: Program) -> None:
    """Replace the objective, and fix its value, by weights whose sums hardly ever coincide for two placements."""
    kept = program.model.objective
    program.require(kept <= pulp.value(kept) + _layer_weight(program) / 2, "preferred")
    decisions, draw = (*program.n.values(), *program.y.values(), *program.z.values(), *program.r.values()), Random(0)
    program.model.setObjective(pulp.lpSum(draw.random() * decision for decision in decisions))
    program.model.solverModel = None


def _layer_weight(program: Program) -> float:
    """Return the weight of a layer in `prefer`: all layers together weigh less than a site, which weighs 1 or more."""
    return 1 / (2.0 * len(program.given.sites) * program.given.coeffs.num_layers)


def _cut_off(program: Program, seconds: float) -> None:
    program.require(program.model.objective <= seconds / program.given.unit_s, "at_most")


def _run(program: Program, time_limit_s: float | None, solver: SolverName | None) -> Solution:
    """Return the solver's result, or CBC's if HiGHS fails numerically."""
    name = solver or solver_name()
    status = program.model.solve(engine(name, time_limit_s))
    if name == "HiGHS" and status == pulp.LpStatusNotSolved and _gave_up(program):
        program.model.solverModel = None
        status = program.model.solve(engine("CBC", time_limit_s))
    if status == pulp.LpStatusInfeasible:
        return Solution("infeasible", None, None, None)
    optimal = program.model.sol_status == pulp.LpSolutionOptimal
    bound_s = _bound_s(program, optimal)
    if not (optimal or program.model.sol_status == pulp.LpSolutionIntegerFeasible):
        return Solution("time limit", None, None, bound_s)
    blocks, replicas = _decode(program)
    return Solution("optimal" if optimal else "time limit", blocks, replicas, bound_s)


def _decode(program: Program) -> tuple[tuple[SiteBlock, ...], tuple[tuple[int, ...], ...]]:
    """Return the blocks from the first stage on, and each stage's replicas by class; integers are rounded."""
    order = _path(program)
    layers = [_block_layers(program, i) for i in order]
    rows = [_rows(program, i, len(held)) for i, held in zip(order, layers, strict=True)]
    blocks = tuple(
        SiteBlock(program.given.sites[i], held, all(_is_even(program, row) for row in of_block))
        for i, held, of_block in zip(order, layers, rows, strict=True)
    )
    return blocks, tuple(row for of_block in rows for row in of_block)


def _is_even(program: Program, row: tuple[int, ...]) -> bool:
    """Return True if all clusters with replicas of a stage, given by class, hold equally many."""
    return are_even(program.given.coeffs.cluster[c] for c, count in enumerate(row) for _ in range(count))


def _path(program: Program) -> list[int]:
    """Return the used sites, starting with the first stage's."""
    order = [next(i for i in program.given.indices if _whole(program.first[i]))]
    while not _whole(program.last[order[-1]]) and len(order) <= len(program.given.sites):
        order.append(next(j for (i, j), follows in program.z.items() if i == order[-1] and _whole(follows)))
    return order


def _block_layers(program: Program, i: int) -> tuple[int, ...]:
    """Return the layers of the stages on a site: first, middle ones ascending, last; or as in the fixed cut."""
    fixed_layers = program.given.spec.fixed_layers
    if fixed_layers is not None:
        return tuple(fixed_layers[s] for (s, at), on in program.y.items() if at == i and _whole(on))
    found = []
    for kinds in (("first", "only"), ("middle",), ("last",)):
        for (at, kind, a), stages in sorted(program.n.items(), key=lambda item: item[0][2]):
            if at == i and kind in kinds:
                found += [a] * _whole(stages)
    return tuple(found)


def _rows(program: Program, i: int, stages: int) -> list[tuple[int, ...]]:
    """Return each stage's replicas by class for a site: as even as whole numbers allow, at least one in each class."""
    coeffs, site = program.given.coeffs, program.given.sites[i]
    num_classes, dp = len(coeffs.group_slots), coeffs.candidate.dp
    if len(site) == 1:
        return [tuple(dp if c == site[0] else 0 for c in range(num_classes))] * stages
    left = {c: _whole(program.r[i, c]) for c in site}
    rows = []
    for remaining in range(stages, 0, -1):
        row = {c: max(1, left[c] // remaining) for c in left}
        for c in sorted(left, key=lambda c: (-(left[c] - row[c] * remaining), c)):
            row[c] += min(dp - sum(row.values()), left[c] - row[c] - (remaining - 1))
        left = {c: left[c] - row[c] for c in left}
        rows.append(tuple(row.get(c, 0) for c in range(num_classes)))
    return rows


def _whole(expression: Any) -> int:
    """Return the value of a variable, or of a sum of variables."""
    return round(float(expression.value() or 0.0))


def _gave_up(program: Program) -> bool:
    """Return True if HiGHS ended for a reason other than the time limit."""
    return "TimeLimit" not in str(program.model.solverModel.getModelStatus())


def _bound_s(program: Program, optimal: bool) -> float | None:
    """Return the solver's lower bound in seconds: HiGHS reports one, CBC's is its optimum."""
    highs = getattr(program.model, "solverModel", None)
    if highs is not None:
        return float(highs.getInfo().mip_dual_bound) * program.given.unit_s
    return float(pulp.value(program.model.objective)) * program.given.unit_s if optimal else None


def engine(name: SolverName, time_limit_s: float | None) -> Any:
    """Return the solver with one thread, no gap allowed, and no output."""
    if name == "HiGHS":
        return pulp.HiGHS(msg=False, threads=1, gapRel=0.0, gapAbs=0.0, timeLimit=time_limit_s, random_seed=0)
    return pulp.PULP_CBC_CMD(msg=False, threads=1, gapRel=0.0, timeLimit=time_limit_s)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide PuLP 3's notices about its next major version, which this project excludes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
