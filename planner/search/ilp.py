"""The integer program of one candidate: how many stages of how many layers each class of hosts holds.

Equal hosts are counted, not named, and so are equal stages, so the size of the program depends on how many classes and
layers there are and not on how many GPUs.

Sets
    C   classes of equal hosts, c                      I   sites, i: sets of classes that may hold a stage, C(i)
    K   kinds of stage: first, middle, last; with one stage in all, only
    A   numbers of layers, a
Parameters (seconds divided by `unit`, so that the objective is near 1)
    m   micro-batches per step          p  stages            d  replicas of each stage         L  layers of the model
    slow, slowest  seconds between which the pace is looked for
    tau[i]  seconds per layer and micro-batch          head[i]  seconds of the head, on the last stage
    cap[i,k]  most layers memory and slowest allow     fit[i,a]  first position where memory allows a middle stage of a
    slots[i]  stages class i can hold; of a site over several clusters 1        places[c]  tensor groups class c holds
    near[i]  seconds of one message between hosts of i    far[i,j]  of one message from i to j
    share[i]  stages that share a host, between which messages are free
    sync[i,k,a]  seconds of a stage's exchange of gradients that nothing hides
    least  seconds known to be below G
Variables
    n[i,k,a]  integer: stages of kind k with a layers on site i           Q[i] = sum over k, a: all stages on i
    u[i]      binary: site i is used                    w[i,a]  binary: some middle stage on i holds a layers
    z[i,j]    binary: the stages of j follow those of i  f[i]   integer: edges inside i that leave a host
    e[i]      binary: f[i] > 0                          P[i]    position of the first stage on i
    r[i,c]    integer: replicas of the stages on i that are in class c; only of sites of several classes
    T  seconds: pace, the slowest stage's time
    X  seconds by which the slowest edge exceeds T (adds to T where the schedule hides nothing)
    G  seconds of the longest exposed exchange
Objective
    minimise (m-1) (T + X) + sum of stages' seconds + 2 sum of edges' seconds + G
Constraints
    layers     sum a n = L                  stages     one first and one last stage, p in all
    slots      Q[i] between u[i] and slots[i] u[i]
    places     replicas: sum_c r[i,c] = d Q[i], r[i,c] >= Q[i]; per class, with d Q[c] of its own, at most places[c]
    order      the used sites form a path by z from the first stage's to the last stage's; each is entered once
    position   P[j] = P[i] + Q[i] where z[i,j], P = 0 on the first
    memory     middle stages on i of a layers or more are no more than its positions from fit[i,a] on
    hosts      f[i] >= Q[i] / share[i] - 1 on a used site
    edges      X >= near[i] - T where e[i], X >= far[i,j] - T where z[i,j]; X >= near, far where nothing is hidden
    pace       T >= seconds of a stage of kind k with a layers on i, where such a stage is; slow <= T <= slowest
    sync       G >= sync[i,k,a] where such a stage is; G >= least
    crossing   (if asked) at least one stage is on a site over several clusters
A fixed cut gives every position s its layers: binaries y[s,i] take the place of n, and P[i] <= s < P[i] + Q[i] where
y[s,i]. Source: formulation "configuration counts" of Holmes' planning notes.

Ties are broken by `prefer`: among optimal placements one that uses sites early in the list of sites, then starts on an
early site, then holds more layers on early sites; and by `single_out`: of those the one of least weight, where every
decision has a weight of its own, arbitrary but always the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, Literal

import pulp

from planner.problem.coefficients import Coefficients
from planner.search.closed_form import Block, Site, edge_s, exposed_sync_s, sync_s_per_byte
from planner.tolerances import ROUNDING

MOST_CLASSES_FOR_ALL_SITES = 4  # with more, a stage is on one class, all classes of a cluster, or two clusters' classes
CUTOFF = 1e-3  # relative: how far above `at_most_s` the row that cuts off worse placements is, for the solvers' sake

SolverName = Literal["HiGHS", "CBC"]
Kind = Literal["first", "middle", "last", "only"]


@dataclass(frozen=True)
class Question:
    """What one program is asked: a pace between `slow_s` and `slowest_s`; with `fixed_layers`, by stage, any pace.

    `at_most_s`: placements that take longer are of no use; some may be told all the same. `least_sync_s`: known to be
    below every G. `crossing`: a stage over several clusters is wanted, else none is allowed.
    """

    coeffs: Coefficients
    slow_s: float = 0.0
    slowest_s: float = 0.0
    at_most_s: float | None = None
    least_sync_s: float = 0.0
    crossing: bool = False
    fixed_layers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Solution:
    """What a solver said. `blocks` and `replicas`, by stage and class, are None when it found no placement.

    `bound_s` is below every placement that was asked for, as far as proved; None when nothing was.
    """

    status: Literal["optimal", "infeasible", "time limit"]
    blocks: tuple[Block, ...] | None
    replicas: tuple[tuple[int, ...], ...] | None
    bound_s: float | None


@dataclass
class Program:
    """The model while it is built: question, sites, and the variables in the letters of this file's docstring."""

    question: Question
    unit_s: float
    sites: list[Site]
    model: pulp.LpProblem
    n: dict[tuple[int, Kind, int], Any] = field(default_factory=dict)
    y: dict[tuple[int, int], Any] = field(default_factory=dict)
    Q: list[Any] = field(default_factory=list)
    first: list[Any] = field(default_factory=list)
    last: list[Any] = field(default_factory=list)
    u: list[Any] = field(default_factory=list)
    w: dict[tuple[int, int], Any] = field(default_factory=dict)
    z: dict[tuple[int, int], Any] = field(default_factory=dict)
    f: list[Any] = field(default_factory=list)
    P: list[Any] = field(default_factory=list)
    r: dict[tuple[int, int], Any] = field(default_factory=dict)
    T: Any = None
    X: Any = None
    G: Any = None

    @property
    def coeffs(self) -> Coefficients:
        return self.question.coeffs

    @property
    def pp(self) -> int:
        """p."""
        return self.coeffs.candidate.pp

    @property
    def indices(self) -> range:
        """I, as indices of `sites`."""
        return range(len(self.sites))

    @property
    def least_preference(self) -> float:
        """The weight of a layer in `prefer`: all layers together weigh less than a site, which weighs 1 or more."""
        return 1 / (2.0 * len(self.sites) * self.coeffs.num_layers)

    def require(self, constraint: Any, name: str) -> None:
        """Adds one named constraint."""
        self.model.addConstraint(constraint, name)

    def near_s(self, i: int) -> float:
        """near[i], scaled."""
        return edge_s(self.coeffs, self.sites[i], self.sites[i]) / self.unit_s

    def far_s(self, i: int, j: int) -> float:
        """far[i,j], scaled."""
        return edge_s(self.coeffs, self.sites[i], self.sites[j]) / self.unit_s

    def stage_s(self, i: int, layers: int, is_last: bool) -> float:
        """Seconds of a stage, scaled."""
        site = self.sites[i]
        head_s = max(self.coeffs.head_s[c] for c in site) * is_last
        return (layers * max(self.coeffs.layer_s[c] for c in site) + head_s) / self.unit_s

    def sync_s(self, i: int, position: int, layers: int) -> float:
        """sync[i,k,a] of a stage at `position`, scaled."""
        coeffs = self.coeffs
        if coeffs.candidate.dp == 1:
            return 0.0
        stage_s = self.stage_s(i, layers, position == self.pp - 1) * self.unit_s
        per_byte = sync_s_per_byte(coeffs, self.sites[i])
        return exposed_sync_s(coeffs, per_byte, coeffs.sync_bytes(position, layers), stage_s) / self.unit_s

    def share(self, i: int) -> int:
        """share[i]."""
        return self.coeffs.stages_per_host[self.sites[i][0]] if len(self.sites[i]) == 1 else 1

    def slots(self, i: int) -> int:
        """slots[i]."""
        coeffs, site = self.coeffs, self.sites[i]
        if len(site) == 1:
            return min(self.pp, coeffs.slots[site[0]])
        pooled = sum(coeffs.group_slots[c] for c in site) // coeffs.candidate.dp
        return min(self.pp, 1 if self.crosses(i) else pooled)

    def crosses(self, i: int) -> bool:
        """Whether the site is over several clusters."""
        return len({self.coeffs.cluster[c] for c in self.sites[i]}) > 1

    def fits(self, i: int, position: int, layers: int) -> bool:
        """Whether memory holds a stage of `layers` at `position`, and the pace allows it."""
        within = self.question.fixed_layers is not None or (
            self.stage_s(i, layers, position == self.pp - 1) * self.unit_s <= self.question.slowest_s * (1 + ROUNDING)
        )
        return within and all(layers <= self.coeffs.capacity[position][c] for c in self.sites[i])


def solve(question: Question, time_limit_s: float | None = None, solver: SolverName | None = None) -> Solution:
    """The placement of least closed-form seconds. `solver` None takes HiGHS where installed, else CBC."""
    with _quiet():
        program = build(question)
        if question.at_most_s is not None:
            _cut_off(program, question.at_most_s * (1 + CUTOFF))
    return _answer(program, time_limit_s, solver)


def preferred(question: Question, time_limit_s: float | None = None, solver: SolverName | None = None) -> Solution:
    """Among the placements that take no longer than `question.at_most_s`, the one `prefer` and `single_out` choose."""
    assert question.at_most_s is not None
    with _quiet():
        program = build(question)
        _cut_off(program, question.at_most_s)
        prefer(program)
    solution = _answer(program, time_limit_s, solver)
    if solution.status != "optimal":
        return solution
    with _quiet():
        single_out(program)
    return _answer(program, time_limit_s, solver)


def _cut_off(program: Program, seconds: float) -> None:
    program.require(program.model.objective <= seconds / program.unit_s, "at_most")


def _answer(program: Program, time_limit_s: float | None, solver: SolverName | None) -> Solution:
    """What the solver says; where HiGHS gives up on the numbers, CBC is asked."""
    with _quiet():
        name = solver or solver_name()
        status = program.model.solve(_engine(name, time_limit_s))
        if name == "HiGHS" and status == pulp.LpStatusNotSolved and _gave_up(program):
            program.model.solverModel = None
            status = program.model.solve(_engine("CBC", time_limit_s))
    return _read(program, status)


def _gave_up(program: Program) -> bool:
    """Whether HiGHS ended for another reason than the time limit."""
    return "TimeLimit" not in str(program.model.solverModel.getModelStatus())


def write_lp(question: Question, path: Path) -> None:
    """Writes the program to `path` in LP format, in seconds, every constraint by its name."""
    with _quiet():
        build(question, unit_s=1.0).model.writeLP(str(path))


def solver_name() -> SolverName:
    """The solver `solve` takes by default."""
    return "HiGHS" if pulp.HiGHS(msg=False).available() else "CBC"


def build(question: Question, unit_s: float | None = None) -> Program:
    """The whole program, ready to solve; without `unit_s` in a unit that suits solvers."""
    coeffs = question.coeffs
    unit_s = unit_s or question.at_most_s or question.slowest_s * coeffs.num_microbatches or sum(coeffs.layer_s) or 1.0
    sites = make_sites(coeffs, question.crossing)
    program = Program(question, unit_s, sites, pulp.LpProblem("placement", pulp.LpMinimize))
    add_variables(program)
    if question.fixed_layers is None:
        add_counts(program)
    else:
        add_fixed_cut(program, question.fixed_layers)
    add_objective(program)
    add_slots(program)
    add_places(program)
    add_order(program)
    add_position(program)
    if question.fixed_layers is None:
        add_memory(program)
    add_edges(program)
    if question.crossing:
        wanted = pulp.lpSum(program.Q[i] for i in program.indices if program.crosses(i))
        program.require(wanted >= 1, "crossing")
    return program


def make_sites(coeffs: Coefficients, crossing: bool) -> list[Site]:
    """I: every class alone, sets of classes of one cluster, and where a stage may cross, sets over several clusters."""
    classes, dp = range(len(coeffs.group_slots)), coeffs.candidate.dp
    if len(classes) <= MOST_CLASSES_FOR_ALL_SITES:
        sets = [site for size in range(1, len(classes) + 1) for site in combinations(classes, size)]
    else:
        clusters = sorted(set(coeffs.cluster))
        of = {x: tuple(c for c in classes if coeffs.cluster[c] == x) for x in clusters}
        sets = [(c,) for c in classes] + [site for site in of.values() if len(site) > 1]
        sets += [tuple(sorted(of[x] + of[y])) for x, y in combinations(clusters, 2)]
    sets = [site for site in sets if len(site) <= dp and all(coeffs.group_slots[c] for c in site)]
    return [site for site in sets if crossing or len({coeffs.cluster[c] for c in site}) == 1]


def add_variables(program: Program) -> None:
    """u, z, f, P, r, T, X, G with their ranges."""
    for i in program.indices:
        program.u.append(pulp.LpVariable(f"u_{i}", cat=pulp.LpBinary))
        program.P.append(pulp.LpVariable(f"P_{i}", 0, program.pp - 1))
        program.f.append(pulp.LpVariable(f"f_{i}", 0, program.pp - 1, cat=pulp.LpInteger))
        for j in program.indices:
            if i != j and program.pp > 1:
                program.z[i, j] = pulp.LpVariable(f"z_{i}_{j}", cat=pulp.LpBinary)
        for c in program.sites[i] if len(program.sites[i]) > 1 else ():
            program.r[i, c] = pulp.LpVariable(f"r_{i}_{c}", 0, program.coeffs.group_slots[c], cat=pulp.LpInteger)
    program.T = pulp.LpVariable("T", program.question.slow_s / program.unit_s)
    program.X = pulp.LpVariable("X", 0)
    program.G = pulp.LpVariable("G", program.question.least_sync_s / program.unit_s)


def add_counts(program: Program) -> None:
    """n, and of it Q, first and last; all layers; T and G not below any stage's time and exchange."""
    last = program.pp - 1
    kinds: dict[Kind, range] = {"first": range(1), "middle": range(1, last), "last": range(last, last + 1)}
    if program.pp == 1:
        kinds = {"only": range(1)}
    for kind, positions in kinds.items():
        for i in program.indices if positions else ():
            for a in _numbers_of_layers(program, i, positions):
                _add_count(program, i, kind, positions[0], a)
    layers = pulp.lpSum(a * stages for (_, _, a), stages in program.n.items())
    program.require(layers == program.coeffs.num_layers, "layers")
    for i in program.indices:
        program.Q.append(pulp.lpSum(stages for (at, _, _), stages in program.n.items() if at == i))
        program.first.append(_of_kind(program, i, ("first", "only")))
        program.last.append(_of_kind(program, i, ("last", "only")))


def _numbers_of_layers(program: Program, i: int, positions: range) -> list[int]:
    """A for site i: what fits somewhere, and no fewer than all other stages leave over."""
    coeffs = program.coeffs
    fastest_s = min(coeffs.layer_s)
    within = int(program.question.slowest_s * (1 + ROUNDING) / fastest_s) if fastest_s else coeffs.num_layers
    most = min(coeffs.num_layers, within)
    least = max(1, coeffs.num_layers - (program.pp - 1) * most)
    if not program.slots(i):
        return []
    return [a for a in range(least, most + 1) if any(program.fits(i, s, a) for s in positions)]


def _add_count(program: Program, i: int, kind: Kind, position: int, a: int) -> None:
    """n[i,k,a] and its rows, unless its exchange alone takes longer than what is looked for."""
    question, sync_s = program.question, program.sync_s(i, position, a)
    stage_s = program.stage_s(i, a, kind in ("last", "only"))
    if question.at_most_s is not None and sync_s * program.unit_s > question.at_most_s:
        return
    most = min(program.slots(i), program.pp - 2) if kind == "middle" else 1
    stages = pulp.LpVariable(f"n_{i}_{kind}_{a}", 0, most, cat=pulp.LpInteger)
    program.n[i, kind, a] = held = stages
    is_slow = stage_s * program.unit_s > question.slow_s * (1 + ROUNDING)
    syncs_long = sync_s * program.unit_s > question.least_sync_s
    if most > 1 and (is_slow or syncs_long):
        held = program.w[i, a] = pulp.LpVariable(f"w_{i}_{a}", cat=pulp.LpBinary)
        program.require(stages <= most * held, f"held_{i}_{a}")
    if is_slow:
        program.require(stage_s * held <= program.T, f"pace_{i}_{kind}_{a}")
    if syncs_long:
        program.require(sync_s * held <= program.G, f"sync_{i}_{kind}_{a}")


def _of_kind(program: Program, i: int, kinds: Sequence[Kind]) -> Any:
    return pulp.lpSum(stages for (at, kind, _), stages in program.n.items() if at == i and kind in kinds)


def add_fixed_cut(program: Program, layers: Sequence[int]) -> None:
    """y, and of it Q, first and last; each stage on one site, T and G not below any; blocks are where P says."""
    last = program.pp - 1
    for s, held in enumerate(layers):
        for i in program.indices:
            if program.slots(i) and program.fits(i, s, held):
                on = program.y[s, i] = pulp.LpVariable(f"y_{s}_{i}", cat=pulp.LpBinary)
                program.require(program.stage_s(i, held, s == last) * on <= program.T, f"pace_{s}_{i}")
                program.require(program.sync_s(i, s, held) * on <= program.G, f"sync_{s}_{i}")
        program.require(pulp.lpSum(on for (at, _), on in program.y.items() if at == s) == 1, f"site_{s}")
    for i in program.indices:
        program.Q.append(pulp.lpSum(on for (_, at), on in program.y.items() if at == i))
        program.first.append(pulp.lpSum([program.y[0, i]] if (0, i) in program.y else []))
        program.last.append(pulp.lpSum([program.y[last, i]] if (last, i) in program.y else []))
    for (s, i), on in program.y.items():
        program.require(program.P[i] <= s + program.pp * (1 - on), f"after_{s}_{i}")
        program.require(program.P[i] + program.Q[i] >= (s + 1) * on, f"before_{s}_{i}")


def add_objective(program: Program) -> None:
    """(m-1)(T + X) + stages + edges + G."""
    coeffs, last = program.coeffs, program.pp - 1
    stages = [program.stage_s(i, a, kind in ("last", "only")) * count for (i, kind, a), count in program.n.items()]
    for (s, i), on in program.y.items():
        assert program.question.fixed_layers is not None
        stages.append(program.stage_s(i, program.question.fixed_layers[s], s == last) * on)
    edges = [program.near_s(i) * program.f[i] for i in program.indices]
    edges += [program.far_s(i, j) * follows for (i, j), follows in program.z.items()]
    total = (coeffs.num_microbatches - 1) * (program.T + program.X)
    total += pulp.lpSum(stages) + 2 * pulp.lpSum(edges) + program.G
    program.model.setObjective(total)


def add_slots(program: Program) -> None:
    """p stages in all; a site is used where it has stages, and holds no more than it has slots for."""
    program.require(pulp.lpSum(program.Q) == program.pp, "stages")
    program.require(pulp.lpSum(program.first) == 1, "stages_first")
    program.require(pulp.lpSum(program.last) == 1, "stages_last")
    for i in program.indices:
        program.require(program.Q[i] >= program.u[i], f"slots_least_{i}")
        program.require(program.Q[i] <= program.slots(i) * program.u[i], f"slots_most_{i}")


def add_places(program: Program) -> None:
    """Replicas of stages over several classes are somewhere, and no class holds more than its places."""
    dp = program.coeffs.candidate.dp
    for i in program.indices:
        shares = {c: program.r[i, c] for c in program.sites[i] if (i, c) in program.r}
        if shares:
            program.require(pulp.lpSum(shares.values()) == dp * program.Q[i], f"replicas_{i}")
        for c, replicas in shares.items():
            program.require(replicas >= program.Q[i], f"replicas_least_{i}_{c}")
    for c, group_slots in enumerate(program.coeffs.group_slots):
        own = [dp * program.Q[i] for i in program.indices if program.sites[i] == (c,)]
        shared = [replicas for (_, at), replicas in program.r.items() if at == c]
        if shared:
            program.require(pulp.lpSum(own + shared) <= group_slots, f"places_{c}")


def add_order(program: Program) -> None:
    """Used sites form a path: each is entered once, or holds the first stage; left once, or holds the last."""
    for i in program.indices:
        entered = pulp.lpSum(z for (_, j), z in program.z.items() if j == i)
        left = pulp.lpSum(z for (j, _), z in program.z.items() if j == i)
        program.require(entered + program.first[i] == program.u[i], f"order_enter_{i}")
        program.require(left + program.last[i] == program.u[i], f"order_leave_{i}")


def add_position(program: Program) -> None:
    """The first stage's site is at 0, and each site begins where the one before it ends, which also forbids circles."""
    p = program.pp
    for i in program.indices:
        program.require(program.P[i] <= p * (1 - program.first[i]), f"position_first_{i}")
    for (i, j), follows in program.z.items():
        end = program.P[i] + program.Q[i]
        program.require(program.P[j] >= end - 2 * p * (1 - follows), f"position_least_{i}_{j}")
        program.require(program.P[j] <= end + p * (1 - follows), f"position_most_{i}_{j}")


def add_memory(program: Program) -> None:
    """Middle stages of many layers only where few micro-batches are in flight: late."""
    for i in program.indices:
        at: dict[int, int] = {}
        for _, a in sorted((kind, a) for (site, kind, a) in program.n if site == i and kind == "middle"):
            first = next(s for s in range(1, program.pp - 1) if program.fits(i, s, a))
            if first > 1 and first not in at:
                at[first] = a
        for first, least in at.items():
            stages = [n for (site, kind, a), n in program.n.items() if site == i and kind == "middle" and a >= least]
            any_held = pulp.LpVariable(f"v_{i}_{least}", cat=pulp.LpBinary)
            program.require(pulp.lpSum(stages) <= program.pp * any_held, f"memory_any_{i}_{least}")
            room = program.P[i] + program.Q[i] - program.last[i] - first
            program.require(pulp.lpSum(stages) <= room + 2 * program.pp * (1 - any_held), f"memory_{i}_{least}")


def add_edges(program: Program) -> None:
    """f counts the edges inside a site that leave a host; X is no less than any edge's part that T does not hide."""
    hidden = program.T if program.coeffs.hides_edges else 0.0
    for i in program.indices:
        share = program.share(i)
        program.require(share * program.f[i] >= program.Q[i] - share * program.u[i], f"hosts_{i}")
        near_s = program.near_s(i)
        if near_s and _may_show(program, near_s):
            leaves = pulp.LpVariable(f"e_{i}", cat=pulp.LpBinary)
            program.require(program.f[i] <= program.pp * leaves, f"edges_leave_{i}")
            program.require(near_s * leaves - hidden <= program.X, f"edges_near_{i}")
    for (i, j), follows in program.z.items():
        far_s = program.far_s(i, j)
        if far_s and _may_show(program, far_s):
            program.require(far_s * follows - hidden <= program.X, f"edges_far_{i}_{j}")


def _may_show(program: Program, seconds: float) -> bool:
    """Whether an edge of `seconds` (scaled) can be slower than what hides it."""
    return not program.coeffs.hides_edges or seconds * program.unit_s > program.question.slow_s


def prefer(program: Program) -> None:
    """Replaces the objective: early sites, an early start, then layers early; each above all that follows it."""
    count = len(program.sites)
    used = pulp.lpSum((i + 1) * count * used for i, used in enumerate(program.u))
    start = pulp.lpSum(i * first for i, first in enumerate(program.first))
    held = [(i * a, stages) for (i, _, a), stages in program.n.items()]
    held += [(i, on) for (_, i), on in program.y.items()]
    layers = pulp.lpSum(weight * stages for weight, stages in held)
    program.model.setObjective(used + start + layers * program.least_preference)


def single_out(program: Program) -> None:
    """Replaces the objective, whose value is kept, by weights that hardly any two placements have the same sum of."""
    kept = program.model.objective
    program.require(kept <= pulp.value(kept) + program.least_preference / 2, "preferred")
    decisions, draw = (*program.n.values(), *program.y.values(), *program.z.values(), *program.r.values()), Random(0)
    program.model.setObjective(pulp.lpSum(draw.random() * decision for decision in decisions))
    program.model.solverModel = None


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


def _read(program: Program, status: int) -> Solution:
    """The solver's answer, with integers rounded."""
    if status == pulp.LpStatusInfeasible:
        return Solution("infeasible", None, None, None)
    optimal = program.model.sol_status == pulp.LpSolutionOptimal
    bound_s = _bound(program, optimal)
    if not (optimal or program.model.sol_status == pulp.LpSolutionIntegerFeasible):
        return Solution("time limit", None, None, bound_s)
    order = _path(program)
    blocks = tuple(Block(program.sites[i], _block_layers(program, i)) for i in order)
    replicas = tuple(
        row for i, block in zip(order, blocks, strict=True) for row in _rows(program, i, len(block.layers))
    )
    return Solution("optimal" if optimal else "time limit", blocks, replicas, bound_s)


def _path(program: Program) -> list[int]:
    """The used sites from the first stage's on."""
    order = [next(i for i in program.indices if _whole(program.first[i]))]
    while not _whole(program.last[order[-1]]) and len(order) <= len(program.sites):
        order.append(next(j for (i, j), follows in program.z.items() if i == order[-1] and _whole(follows)))
    return order


def _block_layers(program: Program, i: int) -> tuple[int, ...]:
    """The layers of the stages on a site: first, middle ones ascending, last; or as the cut is fixed."""
    if program.question.fixed_layers is not None:
        return tuple(program.question.fixed_layers[s] for (s, at), on in program.y.items() if at == i and _whole(on))
    found = []
    for kinds in (("first", "only"), ("middle",), ("last",)):
        for (at, kind, a), stages in sorted(program.n.items(), key=lambda item: item[0][2]):
            if at == i and kind in kinds:
                found += [a] * _whole(stages)
    return tuple(found)


def _rows(program: Program, i: int, stages: int) -> list[tuple[int, ...]]:
    """By stage of a site, its replicas in each class: as even as whole numbers allow, each class with one at least."""
    num_classes, dp = len(program.coeffs.group_slots), program.coeffs.candidate.dp
    if len(program.sites[i]) == 1:
        return [tuple(dp * (c == program.sites[i][0]) for c in range(num_classes))] * stages
    left = {c: _whole(program.r[i, c]) for c in program.sites[i]}
    rows = []
    for remaining in range(stages, 0, -1):
        row = {c: max(1, left[c] // remaining) for c in left}
        for c in sorted(left, key=lambda c: (-(left[c] - row[c] * remaining), c)):
            row[c] += min(dp - sum(row.values()), left[c] - row[c] - (remaining - 1))
        left = {c: left[c] - row[c] for c in left}
        rows.append(tuple(row.get(c, 0) for c in range(num_classes)))
    return rows


def _whole(variable: Any) -> int:
    return round(float(pulp.value(variable) or 0.0))


def _bound(program: Program, optimal: bool) -> float | None:
    """Seconds the solver proved no placement beats: HiGHS tells, CBC's bound is its optimum."""
    highs = getattr(program.model, "solverModel", None)
    if highs is not None:
        return float(highs.getInfo().mip_dual_bound) * program.unit_s
    return float(pulp.value(program.model.objective)) * program.unit_s if optimal else None
