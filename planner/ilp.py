"""The integer program of one candidate: which clusters hold each stage, and how many layers it has.

Sets
    S   stages 0..p-1, s
    C   clusters, c
    I   sites, i: one cluster, or several when a stage's replicas are spread over them; C(i) its clusters
    A   arcs between consecutive stages: (s, i, j) stage s on site i, stage s+1 on site j; and, for a site i of several
        clusters, (s, i, "kept"): both stages on i with every replica of s+1 in the cluster of its replica of s
Parameters (seconds divided by `unit`, so that the objective is near 1)
    m            micro-batches per step                   dp       replicas of each stage
    tau[i]       seconds per layer and micro-batch        head[i]  seconds of the head per micro-batch, last stage only
    cap[s,i]     most layers memory allows                L        layers of the model
    hop[a]       seconds of one message over arc a        places[c]  tensor groups cluster c can hold
    sync[s,i](l) seconds of the all-reduce of a stage of l layers: (gradient bytes of l layers and ends) x seconds/byte
Variables
    y[s,i]  binary: stage s is on site i                  l[s,i]   integer: its layers, 0 elsewhere
    n[s,c]  integer: replicas of stage s in cluster c     z[a]     unit flow along the sites of consecutive stages
    T  seconds: pace of the steady state                  G  seconds: longest all-reduce
    S[s]  seconds of a stage's micro-batch                E[s]  seconds of one message over edge s -> s+1
    R[s]  seconds of the stages before s and of both directions of the edges before it
    Only "kept" arcs need be binary, the other z are whole wherever y is.
Objective
    minimise (m-1) T + sum_s S[s] + 2 sum_s E[s] + G
Constraints
    site        each stage is on one site
    layers      l[s,i] between y[s,i] and cap[s,i] y[s,i]; all together L; or as fixed in job.yaml
    replicas    n[s,c] >= 1 where the site of s holds c, 0 elsewhere; dp for each stage; at most places[c] in c
    flow        z leaves the site of s and enters the site of s+1
    kept        a kept arc wants n[s,c] = n[s+1,c]
    seconds     S[s] = sum_i tau[i] l[s,i], plus sum_i head[i] y[s,i] on the last stage;  E[s] = sum_a hop[a] z[a];
                R[s+1] = R[s] + S[s] + 2 E[s]
    pace        T >= S[s];  T >= E[s];  (k-s+1) T >= R[k] + S[k] - R[s] for the loops of closed_form.py, s < k, m > p-s
    sync        G >= sync of every stage

Ties are broken by `prefer_first`: among optimal placements one whose longest stage is shortest, then with early stages
on early clusters, then with more layers on early stages. Source: formulation B of Holmes' planning notes; see
closed_form.py for what the objective leaves out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import pulp

from planner.closed_form import fabric_edge_s, shared_edge_s, site_sync_s_per_byte
from planner.terms import Terms

MOST_CLUSTERS_FOR_ALL_SITES = 5  # with more, a stage is on one cluster, on two, or on neighbours in inventory order
TIE = 1e-7  # relative: objectives closer than this count as equal when ties are broken

Site = tuple[int, ...]
Arc = tuple[int, int, int | Literal["kept"]]
SolverName = Literal["HiGHS", "CBC"]


@dataclass(frozen=True)
class Solution:
    """What a solver said. layers[stage] and replicas[stage][cluster] are None when it found no placement.

    `bound_s` is below every placement, as far as the solver proved it; None when it proved nothing.
    """

    status: Literal["optimal", "infeasible", "time limit"]
    layers: tuple[int, ...] | None
    replicas: tuple[tuple[int, ...], ...] | None
    bound_s: float | None


@dataclass
class Program:
    """The model while it is built: terms, sites, and the variables in the letters of this file's docstring."""

    terms: Terms
    unit_s: float
    sites: list[Site]
    model: pulp.LpProblem
    y: dict[tuple[int, int], Any] = field(default_factory=dict)
    l: dict[tuple[int, int], Any] = field(default_factory=dict)  # noqa: E741  the letter of the formulation
    n: dict[tuple[int, int], Any] = field(default_factory=dict)
    z: dict[Arc, Any] = field(default_factory=dict)
    S: dict[int, Any] = field(default_factory=dict)
    E: dict[int, Any] = field(default_factory=dict)
    R: dict[int, Any] = field(default_factory=dict)
    T: Any = None
    G: Any = None

    @property
    def stages(self) -> range:
        """S."""
        return range(self.terms.candidate.pp)

    def require(self, constraint: Any, name: str) -> None:
        """Adds one named constraint."""
        self.model.addConstraint(constraint, name)

    def hop_s(self, arc: Arc) -> float:
        """Seconds of one message over `arc`."""
        _, i, j = arc
        if j == "kept" or (i == j and len(self.sites[i]) == 1):
            return fabric_edge_s(self.terms, self.sites[i])
        return shared_edge_s(self.terms, {*self.sites[i], *self.sites[j]})


def solve(
    terms: Terms,
    fixed_layers: Sequence[int] | None = None,
    least_s: float = 0.0,
    time_limit_s: float | None = None,
    solver: SolverName | None = None,
    at_most_s: float | None = None,
) -> Solution:
    """The placement of least closed-form seconds.

    `least_s` is a known lower bound, which the program may use. `at_most_s` asks instead for the preferred placement
    (see `prefer_first`) among those that take no longer. `solver` None takes HiGHS where installed, else CBC.
    """
    with _quiet():
        program = build(terms, fixed_layers, least_s)
        if at_most_s is not None:
            program.require(program.model.objective <= at_most_s / program.unit_s * (1 + TIE), "as_good")
            prefer_first(program)
        engine = _engine(solver or solver_name(), time_limit_s)
        status = program.model.solve(engine)
    return _read(program, status)


def solver_name() -> SolverName:
    """The solver `solve` takes by default."""
    return "HiGHS" if pulp.HiGHS(msg=False).available() else "CBC"


def build(terms: Terms, fixed_layers: Sequence[int] | None = None, least_s: float = 0.0) -> Program:
    """The whole program, ready to solve."""
    unit_s = least_s or sum(terms.layer_s) or 1.0
    program = Program(terms, unit_s, make_sites(terms), pulp.LpProblem("placement", pulp.LpMinimize))
    add_variables(program)
    add_objective(program, least_s)
    add_site(program)
    add_layers(program, fixed_layers)
    add_replicas(program)
    add_flow(program)
    add_kept(program)
    add_seconds(program)
    add_pace(program)
    add_sync(program)
    return program


def make_sites(terms: Terms) -> list[Site]:
    """I: every cluster alone, then sets of clusters small enough for a replica in each."""
    num_clusters = len(terms.places)
    sites = [
        site
        for size in range(1, min(num_clusters, terms.candidate.dp) + 1)
        for site in combinations(range(num_clusters), size)
    ]
    if num_clusters <= MOST_CLUSTERS_FOR_ALL_SITES:
        return sites
    return [site for site in sites if len(site) <= 2 or site[-1] - site[0] == len(site) - 1]


def add_variables(program: Program) -> None:
    """y, l, n, z, S, E, R, T, G with their ranges."""
    terms, dp = program.terms, program.terms.candidate.dp
    sites = range(len(program.sites))
    for s in program.stages:
        for i in sites:
            program.y[s, i] = pulp.LpVariable(f"y_{s}_{i}", cat=pulp.LpBinary)
            program.l[s, i] = pulp.LpVariable(f"l_{s}_{i}", 0, _cap(program, s, i), cat=pulp.LpInteger)
        for c, places in enumerate(terms.places):
            program.n[s, c] = pulp.LpVariable(f"n_{s}_{c}", 0, min(dp, places), cat=pulp.LpInteger)
        program.S[s] = pulp.LpVariable(f"S_{s}", 0)
        program.R[s] = pulp.LpVariable(f"R_{s}", 0)
    for s in program.stages[:-1]:
        program.E[s] = pulp.LpVariable(f"E_{s}", 0)
        for i in sites:
            for j in sites:
                program.z[s, i, j] = pulp.LpVariable(f"z_{s}_{i}_{j}", 0, 1)
            if len(program.sites[i]) > 1:
                program.z[s, i, "kept"] = pulp.LpVariable(f"z_{s}_{i}_kept", cat=pulp.LpBinary)
    program.T = pulp.LpVariable("T", 0)
    program.G = pulp.LpVariable("G", 0)


def add_objective(program: Program, least_s: float) -> None:
    """(m-1) T + stages + hops + G, not below the bound already known."""
    total = (program.terms.num_microbatches - 1) * program.T + program.G
    total += pulp.lpSum(program.S.values()) + 2 * pulp.lpSum(program.E.values())
    program.model.setObjective(total)
    program.require(total >= least_s / program.unit_s * (1 - 1e-9), "known_bound")


def add_site(program: Program) -> None:
    """Each stage is on one site."""
    for s in program.stages:
        program.require(pulp.lpSum(program.y[s, i] for i in range(len(program.sites))) == 1, f"site_{s}")


def add_layers(program: Program, fixed_layers: Sequence[int] | None) -> None:
    """At least one layer where a stage is, at most what memory allows; L in all, or the fixed cut."""
    for (s, i), layers in program.l.items():
        program.require(layers >= program.y[s, i], f"layers_least_{s}_{i}")
        program.require(layers <= _cap(program, s, i) * program.y[s, i], f"layers_most_{s}_{i}")
    program.require(pulp.lpSum(program.l.values()) == program.terms.num_layers, "layers_all")
    for s, layers in enumerate(fixed_layers or ()):
        held = pulp.lpSum(program.l[s, i] for i in range(len(program.sites)))
        program.require(held == layers, f"layers_fixed_{s}")


def add_replicas(program: Program) -> None:
    """Replicas are where the site is, dp for each stage, and no cluster holds more than its places."""
    terms, dp = program.terms, program.terms.candidate.dp
    for (s, c), replicas in program.n.items():
        holds = pulp.lpSum(program.y[s, i] for i, site in enumerate(program.sites) if c in site)
        program.require(replicas >= holds, f"replicas_least_{s}_{c}")
        program.require(replicas <= dp * holds, f"replicas_most_{s}_{c}")
    for s in program.stages:
        held = pulp.lpSum(program.n[s, c] for c in range(len(terms.places)))
        program.require(held == dp, f"replicas_all_{s}")
    for c, places in enumerate(terms.places):
        program.require(pulp.lpSum(program.n[s, c] for s in program.stages) <= places, f"places_{c}")


def add_flow(program: Program) -> None:
    """One unit of flow leaves each stage's site and enters the next one's; a kept arc stays on its site."""
    for s in program.stages[:-1]:
        for i in range(len(program.sites)):
            leaving = [z for arc, z in program.z.items() if arc[:2] == (s, i)]
            entering = [
                z for arc, z in program.z.items() if arc[0] == s and (arc[2] == i or (arc[2] == "kept" and arc[1] == i))
            ]
            program.require(pulp.lpSum(leaving) == program.y[s, i], f"flow_out_{s}_{i}")
            program.require(pulp.lpSum(entering) == program.y[s + 1, i], f"flow_in_{s + 1}_{i}")


def add_kept(program: Program) -> None:
    """A kept arc wants as many replicas of both stages in each cluster, so that none has to cross."""
    dp = program.terms.candidate.dp
    for (s, i, j), kept in program.z.items():
        if j != "kept":
            continue
        for c in program.sites[i]:
            before, after = program.n[s, c], program.n[s + 1, c]
            program.require(before - after <= dp * (1 - kept), f"kept_most_{s}_{i}_{c}")
            program.require(after - before <= dp * (1 - kept), f"kept_least_{s}_{i}_{c}")


def add_seconds(program: Program) -> None:
    """S, E and R are what the sites, layers and arcs chosen make them, in scaled seconds."""
    terms, unit_s, last = program.terms, program.unit_s, program.terms.candidate.pp - 1
    for s in program.stages:
        parts = []
        for i, site in enumerate(program.sites):
            parts.append(max(terms.layer_s[c] for c in site) / unit_s * program.l[s, i])
            if s == last:
                parts.append(max(terms.head_s[c] for c in site) / unit_s * program.y[s, i])
        program.require(program.S[s] == pulp.lpSum(parts), f"seconds_stage_{s}")
    for s in program.stages[:-1]:
        hops = [program.hop_s(arc) / unit_s * z for arc, z in program.z.items() if arc[0] == s]
        program.require(program.E[s] == pulp.lpSum(hops), f"seconds_edge_{s}")
        reached = program.R[s] + program.S[s] + 2 * program.E[s]
        program.require(program.R[s + 1] == reached, f"seconds_reach_{s + 1}")
    program.require(program.R[0] == 0, "seconds_reach_0")


def add_pace(program: Program) -> None:
    """T is no faster than any stage, any edge, or any loop through neighbouring stages."""
    p = program.terms.candidate.pp
    for s in program.stages:
        program.require(program.S[s] <= program.T, f"pace_stage_{s}")
        if s < p - 1:
            program.require(program.E[s] <= program.T, f"pace_edge_{s}")
        if program.terms.num_microbatches > p - s:
            for k in range(s + 1, p):
                loop = program.R[k] + program.S[k] - program.R[s]
                program.require(loop <= (k - s + 1) * program.T, f"pace_loop_{s}_{k}")


def add_sync(program: Program) -> None:
    """G is no shorter than the all-reduce of any stage's gradients."""
    terms = program.terms
    for s in program.stages:
        parts = []
        for i, site in enumerate(program.sites):
            per_byte = site_sync_s_per_byte(terms, site) / program.unit_s
            parts.append(per_byte * terms.layer_gradient_bytes * program.l[s, i])
            parts.append(per_byte * terms.extra_gradient_bytes(s) * program.y[s, i])
        program.require(pulp.lpSum(parts) <= program.G, f"sync_{s}")


def prefer_first(program: Program) -> None:
    """Replaces the objective: the shortest longest stage, then early stages on early sites, then layers early.

    The weights keep one layer on the longest stage above all sites, and any site above all layers.
    """
    terms, p = program.terms, program.terms.candidate.pp
    longest = pulp.LpVariable("longest", 0)
    least_layer_s = min(terms.layer_s) / program.unit_s
    for s in program.stages:
        program.require(program.S[s] <= longest * (least_layer_s or 1.0), f"longest_{s}")
    sites = pulp.lpSum((p - s) / p * i * y for (s, i), y in program.y.items())
    layers = pulp.lpSum(s * held / (p**2 * terms.num_layers) for (s, _), held in program.l.items())
    program.model.setObjective(p * len(program.sites) * longest + sites + layers)


def _cap(program: Program, s: int, i: int) -> int:
    """Most layers of stage s on site i."""
    return min(program.terms.capacity[s][c] for c in program.sites[i])


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
    found = optimal or program.model.sol_status == pulp.LpSolutionIntegerFeasible
    bound = _bound(program, optimal)
    if not found:
        return Solution("time limit", None, None, bound)
    layers = tuple(round(sum(program.l[s, i].value() for i in range(len(program.sites)))) for s in program.stages)
    replicas = tuple(
        tuple(round(program.n[s, c].value()) for c in range(len(program.terms.places))) for s in program.stages
    )
    return Solution("optimal" if optimal else "time limit", layers, replicas, bound)


def _bound(program: Program, optimal: bool) -> float | None:
    """Seconds the solver proved no placement beats: HiGHS tells, CBC's bound is its optimum."""
    highs = getattr(program.model, "solverModel", None)
    if highs is not None:
        return float(highs.getInfo().mip_dual_bound) * program.unit_s
    return float(pulp.value(program.model.objective)) * program.unit_s if optimal else None
