"""The integer program of one candidate: how many stages of how many layers each class of hosts holds.

Equal hosts and equal stages are counted, not named. So the size of the program depends on the number of classes and
layers, not on the number of GPUs. program_spec.py has the sets and parameters.

Sets
    C   classes of equal hosts, c                      I   sites, i: sets of classes that may hold a stage, C(i)
    K   kinds of stage: first, middle, last; with only one stage: only
    A   numbers of layers, a
Parameters (seconds divided by `unit_s`, so that the objective is near 1)
    m   micro-batches per step          p  stages            d  replicas of each stage         L  layers of the model
    slow, slowest  bounds of the pace, in seconds
    tau[i]  seconds per layer and micro-batch          head[i]  seconds of the head, on the last stage
    dense[i]  seconds of the layers without experts, in place of as many tau[i], on the first stage, which holds them
    cap[i,k]  most layers memory and slowest allow     fit[i,a]  first position where memory allows a middle stage of a
    most[i]  stages site i can hold; 1 over several clusters     group_slots[c]  tensor groups class c can hold
    near[i]  seconds that one message between hosts of i adds to the fill    far[i,j]  the same from i to j
    pacedNear[i], pacedFar[i,j]  the part of those that bounds the pace: without latency if the schedule hides it
    share[i]  stages that share a host, between which messages are free
    nic[i,j]  seconds of a message between i and j on the NIC of a host of i, for the fabric or the shared network
    wire[w,i,j]  the same on w, a trunk or an uplink of a cluster
    sync[i,k,a]  exposed seconds of a stage's exchange of gradients, in two levels if that is faster
    even[i]  replicas of a stage in each cluster of a site over several, if equally many; ring[i,k,a]  sync if not
    least  lower bound on G, in seconds                phi  fill_share: part of 1F1B's fill in the best schedule
Variables
    n[i,k,a]  integer: stages of kind k with a layers on site i           Q[i] = sum over k, a: all stages on i
    u[i]      binary: site i is used                    w[i,a]  binary: some middle stage on i holds a layers
    v[i,a]    binary: some middle stage on i holds a layers or more; for each a at which fit[i,a] grows
    z[i,j]    binary: the stages of j come after i's     f[i]   integer: edges inside i that leave a host
    h[i]      binary: the stage on i has equally many replicas in each cluster; only if even[i] exists
    e[i]      binary: f[i] > 0; g[i] binary: f[i] > 1    P[i]    position of the first stage on i
    r[i,c]    integer: replicas of the stages on i that are in class c; only for sites of several classes; a multiple of
              the number of replicas that stay together because they share experts or sequences
    T  seconds: pace, the slowest stage's time
    X  seconds by which the slowest edge exceeds T (adds to T if the schedule hides nothing)
    G  seconds of the longest exposed exchange
Objective
    minimise (m-1) (T + X) + (1-phi) T + phi (sum of stages' seconds) + 2 sum of edges' seconds + G
Constraints
    layers     sum a n = L                  stages     one first and one last stage, p in all
    most       Q[i] between u[i] and most[i] u[i]
    replicas   sum_c r[i,c] = d Q[i], r[i,c] >= Q[i]; per class, with d Q[c] of its own, at most group_slots[c];
               if h[i], in each cluster of i at most even[i]
    order      the used sites form a path by z from the first stage's to the last stage's; each is entered once
    position   P[j] = P[i] + Q[i] if z[i,j], P = 0 on the first
    memory     middle stages on i of a layers or more: at most p v[i,a]; if v[i,a], no more than i has positions from
               fit[i,a] on
    hosts      Q[i] / share[i] - 1 <= f[i] <= (Q[i] - 1) / share[i] on a used site
    edges      X >= pacedNear[i] - T if e[i], X >= pacedFar[i,j] - T if z[i,j]; without T if nothing is hidden
    nics       X + T >= both edges of a host on one NIC: 2 nic[i,i] if f[i] > 1, nic[i,j] + nic[i,i] if z[i,j] or
               z[j,i] and e[i], nic[i,j] + nic[i,k] if z[j,i] and z[i,k] but not e[i]
    wires      X + T >= sum of wire[w,i,j] over z[i,j], for each w
    pace       T >= seconds of a stage of kind k with a layers on i, if there is such a stage; slow <= T <= slowest
    sync       G >= sync[i,k,a] if there is such a stage, and ring[i,k,a] unless h[i]; G >= least
    crossing   (if asked) at least one stage is on a site over several clusters
A fixed cut gives every position s its layers: binaries y[s,i] replace n, and P[i] <= s < P[i] + Q[i] if y[s,i].
Source: formulation "configuration counts" of Holmes' planning notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pulp

from planner.search.closed_form import PortName
from planner.search.program_spec import Kind, Parameters, ProgramSpec, make_parameters
from planner.tolerances import ROUNDING


@dataclass
class Program:
    """The model while it is built: sets, parameters, and variables by their letters in the docstring above.

    `first` and `last` are the numbers of first and of last stages by site.
    """

    given: Parameters
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
    h: dict[int, Any] = field(default_factory=dict)
    T: Any = None
    X: Any = None
    G: Any = None

    def require(self, constraint: Any, name: str) -> None:
        """Add one named constraint."""
        self.model.addConstraint(constraint, name)


def build(spec: ProgramSpec, unit_s: float | None = None) -> Program:
    """Return the whole program, ready to solve; without `unit_s`, in a unit that suits solvers."""
    given = make_parameters(spec, unit_s)
    program = Program(given, pulp.LpProblem("placement", pulp.LpMinimize))
    add_variables(program)
    if spec.fixed_layers is None:
        add_counts(program)
    else:
        add_fixed_cut(program, spec.fixed_layers)
    add_objective(program)
    add_stages(program)
    add_replicas(program)
    add_order(program)
    add_position(program)
    if spec.fixed_layers is None:
        add_memory(program)
    add_edges(program)
    if spec.crossing:
        wanted = pulp.lpSum(program.Q[i] for i in given.indices if given.crosses(i))
        program.require(wanted >= 1, "crossing")
    return program


def add_variables(program: Program) -> None:
    """Add u, z, f, P, r, T, X, G with their ranges."""
    given = program.given
    for i in given.indices:
        program.u.append(pulp.LpVariable(f"u_{i}", cat=pulp.LpBinary))
        program.P.append(pulp.LpVariable(f"P_{i}", 0, given.pp - 1))
        program.f.append(pulp.LpVariable(f"f_{i}", 0, given.pp - 1, cat=pulp.LpInteger))
        for j in given.indices:
            if i != j and given.pp > 1:
                program.z[i, j] = pulp.LpVariable(f"z_{i}_{j}", cat=pulp.LpBinary)
        if given.even(i) is not None:
            program.h[i] = pulp.LpVariable(f"h_{i}", cat=pulp.LpBinary)
        for c in given.sites[i] if len(given.sites[i]) > 1 else ():
            together = given.coeffs.together
            most = given.coeffs.group_slots[c] // together
            program.r[i, c] = together * pulp.LpVariable(f"r_{i}_{c}", 0, most, cat=pulp.LpInteger)
    program.T = pulp.LpVariable("T", given.spec.slow_s / given.unit_s)
    program.X = pulp.LpVariable("X", 0)
    program.G = pulp.LpVariable("G", given.spec.least_sync_s / given.unit_s)


def add_counts(program: Program) -> None:
    """Add n, and from it Q, first and last. Require all layers. Bound T and G by each stage's time and exchange."""
    given = program.given
    for kind, positions in given.positions.items():
        for i in given.indices:
            for a in given.numbers_of_layers(i, positions):
                _add_count(program, i, kind, positions[0], a)
    layers = pulp.lpSum(a * stages for (_, _, a), stages in program.n.items())
    program.require(layers == given.coeffs.num_layers, "layers")
    for i in given.indices:
        program.Q.append(pulp.lpSum(stages for (at, _, _), stages in program.n.items() if at == i))
        program.first.append(_of_kind(program, i, ("first", "only")))
        program.last.append(_of_kind(program, i, ("last", "only")))


def _add_count(program: Program, i: int, kind: Kind, position: int, a: int) -> None:
    """Add n[i,k,a] and its constraints, unless its exchange alone takes longer than `at_most_s`."""
    given, spec = program.given, program.given.spec
    stage_s, sync_s = given.stage_s(i, a, position), given.sync_s(i, position, a)
    if spec.at_most_s is not None and sync_s * given.unit_s > spec.at_most_s:
        return
    most = min(given.most_stages(i), given.pp - 2) if kind == "middle" else 1
    stages = pulp.LpVariable(f"n_{i}_{kind}_{a}", 0, most, cat=pulp.LpInteger)
    program.n[i, kind, a] = held = stages
    is_slow = stage_s * given.unit_s > spec.slow_s * (1 + ROUNDING)
    syncs_long = sync_s * given.unit_s > spec.least_sync_s
    if most > 1 and (is_slow or syncs_long):
        held = program.w[i, a] = pulp.LpVariable(f"w_{i}_{a}", cat=pulp.LpBinary)
        program.require(stages <= most * held, f"held_{i}_{a}")
    if is_slow:
        program.require(stage_s * held <= program.T, f"pace_{i}_{kind}_{a}")
    if syncs_long:
        program.require(sync_s * held <= program.G, f"sync_{i}_{kind}_{a}")
    _require_ring(program, i, position, a, held, f"{i}_{kind}_{a}")


def _require_ring(program: Program, i: int, position: int, layers: int, held: Any, name: str) -> None:
    """Require G to be at least the exchange in one ring, unless the replicas of the stage that is `held` are even."""
    if i in program.h:
        ring_s = program.given.sync_s(i, position, layers, is_even=False)
        if ring_s > program.given.sync_s(i, position, layers):
            program.require(ring_s * (held - program.h[i]) <= program.G, f"ring_{name}")


def _of_kind(program: Program, i: int, kinds: Sequence[Kind]) -> Any:
    return pulp.lpSum(stages for (at, kind, _), stages in program.n.items() if at == i and kind in kinds)


def add_fixed_cut(program: Program, layers: Sequence[int]) -> None:
    """Add y, and from it Q, first and last. Require one site per stage, lower bounds on T and G, and blocks by P."""
    given, last = program.given, program.given.pp - 1
    for s, held in enumerate(layers):
        for i in given.indices:
            if given.most_stages(i) and given.fits(i, s, held):
                on = program.y[s, i] = pulp.LpVariable(f"y_{s}_{i}", cat=pulp.LpBinary)
                program.require(given.stage_s(i, held, s) * on <= program.T, f"pace_{s}_{i}")
                program.require(given.sync_s(i, s, held) * on <= program.G, f"sync_{s}_{i}")
                _require_ring(program, i, s, held, on, f"{s}_{i}")
        program.require(pulp.lpSum(on for (at, _), on in program.y.items() if at == s) == 1, f"site_{s}")
    for i in given.indices:
        program.Q.append(pulp.lpSum(on for (_, at), on in program.y.items() if at == i))
        program.first.append(pulp.lpSum([program.y[0, i]] if (0, i) in program.y else []))
        program.last.append(pulp.lpSum([program.y[last, i]] if (last, i) in program.y else []))
    for (s, i), on in program.y.items():
        program.require(program.P[i] <= s + given.pp * (1 - on), f"after_{s}_{i}")
        program.require(program.P[i] + program.Q[i] >= (s + 1) * on, f"before_{s}_{i}")


def add_objective(program: Program) -> None:
    """Minimise (m-1)(T + X) + (1-phi) T + phi stages + edges + G."""
    given = program.given
    at = {kind: positions[0] for kind, positions in given.positions.items()}
    stages = [given.stage_s(i, a, at[kind]) * count for (i, kind, a), count in program.n.items()]
    for (s, i), on in program.y.items():
        assert given.spec.fixed_layers is not None
        stages.append(given.stage_s(i, given.spec.fixed_layers[s], s) * on)
    edges = [given.near(i).fill_s / given.unit_s * program.f[i] for i in given.indices]
    edges += [given.far(i, j).fill_s / given.unit_s * follows for (i, j), follows in program.z.items()]
    share = given.coeffs.fill_share
    total = (given.coeffs.num_microbatches - 1) * (program.T + program.X) + (1 - share) * program.T
    total += share * pulp.lpSum(stages) + 2 * pulp.lpSum(edges) + program.G
    program.model.setObjective(total)


def add_stages(program: Program) -> None:
    """Require p stages in all. A site is used if it has stages, and has no more than it can hold."""
    given = program.given
    program.require(pulp.lpSum(program.Q) == given.pp, "stages")
    program.require(pulp.lpSum(program.first) == 1, "stages_first")
    program.require(pulp.lpSum(program.last) == 1, "stages_last")
    for i in given.indices:
        program.require(program.Q[i] >= program.u[i], f"most_used_{i}")
        program.require(program.Q[i] <= given.most_stages(i) * program.u[i], f"most_{i}")


def add_replicas(program: Program) -> None:
    """Require all replicas of stages over several classes, and in no class more tensor groups than it has slots."""
    given, dp = program.given, program.given.coeffs.candidate.dp
    for i in given.indices:
        shares = {c: program.r[i, c] for c in given.sites[i] if (i, c) in program.r}
        if shares:
            program.require(pulp.lpSum(shares.values()) == dp * program.Q[i], f"replicas_{i}")
        for c, replicas in shares.items():
            program.require(replicas >= program.Q[i], f"replicas_least_{i}_{c}")
        each = given.even(i)
        for x in sorted({given.coeffs.cluster[c] for c in shares}) if each is not None else ():
            inside = pulp.lpSum(replicas for c, replicas in shares.items() if given.coeffs.cluster[c] == x)
            program.require(inside <= each * program.h[i] + dp * (1 - program.h[i]), f"replicas_even_{i}_{x}")
    for c, group_slots in enumerate(given.coeffs.group_slots):
        own = [dp * program.Q[i] for i in given.indices if given.sites[i] == (c,)]
        shared = [replicas for (_, at), replicas in program.r.items() if at == c]
        if shared:
            program.require(pulp.lpSum(own + shared) <= group_slots, f"replicas_most_{c}")


def add_order(program: Program) -> None:
    """Require used sites to form a path: each is entered or holds the first stage, and is left or holds the last."""
    for i in program.given.indices:
        entered = pulp.lpSum(z for (_, j), z in program.z.items() if j == i)
        left = pulp.lpSum(z for (j, _), z in program.z.items() if j == i)
        program.require(entered + program.first[i] == program.u[i], f"order_enter_{i}")
        program.require(left + program.last[i] == program.u[i], f"order_leave_{i}")


def add_position(program: Program) -> None:
    """Require that the first stage's site is at 0 and each site begins where the previous one ends, without cycles."""
    given, p = program.given, program.given.pp
    for i in given.indices:
        program.require(program.P[i] <= p * (1 - program.first[i]), f"position_first_{i}")
    for (i, j), follows in program.z.items():
        end = program.P[i] + program.Q[i]
        program.require(program.P[j] >= end - 2 * p * (1 - follows), f"position_least_{i}_{j}")
        program.require(program.P[j] <= end + p * (1 - follows), f"position_most_{i}_{j}")


def add_memory(program: Program) -> None:
    """Require that middle stages of many layers come late, where few micro-batches are in flight."""
    given = program.given
    for i in given.indices:
        at: dict[int, int] = {}
        for _, a in sorted((kind, a) for (site, kind, a) in program.n if site == i and kind == "middle"):
            first = next(s for s in range(1, given.pp - 1) if given.fits(i, s, a))
            if first > 1 and first not in at:
                at[first] = a
        for first, least in at.items():
            stages = [n for (site, kind, a), n in program.n.items() if site == i and kind == "middle" and a >= least]
            any_held = pulp.LpVariable(f"v_{i}_{least}", cat=pulp.LpBinary)
            program.require(pulp.lpSum(stages) <= given.pp * any_held, f"memory_any_{i}_{least}")
            room = program.P[i] + program.Q[i] - program.last[i] - first
            program.require(pulp.lpSum(stages) <= room + 2 * given.pp * (1 - any_held), f"memory_{i}_{least}")


def add_edges(program: Program) -> None:
    """Require f to count the edges inside a site that leave a host, and X to cover any edge's part that T does not."""
    given = program.given
    hidden = program.T if given.coeffs.hides_edges else 0.0
    for i in given.indices:
        share = given.share(i)
        program.require(share * program.f[i] >= program.Q[i] - share * program.u[i], f"hosts_{i}")
        near_s = given.near(i).paced_s(given.coeffs) / given.unit_s
        shows, shared = bool(near_s) and _may_show(program, near_s), _shared_nics(given, i)
        if not shows and not shared:
            continue
        leaves = pulp.LpVariable(f"e_{i}", cat=pulp.LpBinary)
        program.require(program.f[i] <= given.pp * leaves, f"edges_leave_{i}")
        if shows:
            program.require(near_s * leaves - hidden <= program.X, f"edges_near_{i}")
        if shared:
            _add_nics(program, i, leaves, shared)
    for (i, j), follows in program.z.items():
        far_s = given.far(i, j).paced_s(given.coeffs) / given.unit_s
        if far_s and _may_show(program, far_s):
            program.require(far_s * follows - hidden <= program.X, f"edges_far_{i}_{j}")
    _add_wires(program)


def _add_wires(program: Program) -> None:
    """Require X + T to cover all edges together that cross a trunk or an uplink. Single edges have their own row."""
    given, uses = program.given, dict[PortName, list[tuple[float, Any]]]()
    for (i, j), follows in program.z.items():
        for name, use_s in given.wires(i, j).items():
            uses.setdefault(name, []).append((use_s / given.unit_s, follows))
    for number, crossing in enumerate(uses.values()):
        if _may_show(program, (given.pp - 1) * max(use_s for use_s, _ in crossing)):
            taken_s = pulp.lpSum(use_s * follows for use_s, follows in crossing)
            program.require(taken_s <= program.X + program.T, f"wires_{number}")


def _shared_nics(given: Parameters, i: int) -> dict[str, dict[int, float]]:
    """Return nic[i,j] by NIC of a host of i and by j, unscaled; only NICs that two edges may slow below `slow`."""
    uses: dict[str, dict[int, float]] = {}
    for j in given.indices:
        nic = given.nic(i, j)
        uses.setdefault(nic.name, {})[j] = nic.use_s
    return {name: found for name, found in uses.items() if given.pp > 2 and 2 * max(found.values()) > given.spec.slow_s}


def _add_nics(program: Program, i: int, leaves: Any, shared: dict[str, dict[int, float]]) -> None:
    """Require X + T to cover both edges of a host of i on a NIC in `shared`; `leaves` is e[i]."""
    given, paced_s, unit_s = program.given, program.X + program.T, program.given.unit_s
    program.require(given.share(i) * program.f[i] <= program.Q[i] - program.u[i], f"hosts_most_{i}")
    program.require(program.f[i] >= leaves, f"edges_stay_{i}")
    for name, uses in shared.items():
        entered = pulp.lpSum(use_s / unit_s * program.z[j, i] for j, use_s in uses.items() if j != i)
        left = pulp.lpSum(use_s / unit_s * program.z[i, j] for j, use_s in uses.items() if j != i)
        program.require(entered + left - max(uses.values()) / unit_s * leaves <= paced_s, f"nics_{i}_{name}")
        if i in uses:
            near_s = uses[i] / unit_s
            program.require(entered + near_s * leaves <= paced_s, f"nics_first_{i}")
            program.require(left + near_s * leaves <= paced_s, f"nics_last_{i}")
            several = pulp.LpVariable(f"g_{i}", cat=pulp.LpBinary)
            program.require(program.f[i] <= 1 + given.pp * several, f"nics_several_{i}")
            program.require(2 * near_s * several <= paced_s, f"nics_inside_{i}")


def _may_show(program: Program, seconds: float) -> bool:
    """Return True if an edge of `seconds` (scaled) can be slower than the compute that hides it."""
    given = program.given
    return not given.coeffs.hides_edges or seconds * given.unit_s > given.spec.slow_s
