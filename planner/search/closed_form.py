"""The closed form of a step's time, which the integer program minimises.

A placement consists of `layers[stage]` and, for each lane, its sites and edges. A lane is a set of replicas that
exchange nothing with others until gradients are reduced. If every replica keeps to one class of hosts, each class is
one lane; otherwise all replicas are one.

    step = max over lanes ((m-1) T + max_s S_s + phi (sum_s S_s - max_s S_s) + 2 sum_s (E_s + 2 L_s)) + G

m is the lane's micro-batches, S_s a stage's forward and backward of one micro-batch. One message occupies the edge
s -> s+1 for E_s and then takes L_s to arrive: once forward and once backward in the fill, and L_s once more each way
for the norm of the gradients. T is the pace of the steady state: no stage and no edge in either direction is faster,
and latency costs nothing. That needs a schedule with enough micro-batches in flight, such as `eager`. If job.yaml
fixes another one, each micro-batch waits for the slowest edge once per stage: T = max S_s + max (E_s + L_s).
A NIC that sends one edge's activations and another's gradients needs N_s + N_(s+1), so T is at least that. T is also
at least the time that a trunk or an uplink needs for all edges that cross it.
G is the longest exchange of a stage's gradients and weights that its own last micro-batch does not hide; one layer's
is never hidden.
The simulation of the best placements does not make these approximations: a site is as slow as its slowest class, an
edge as its slowest replica, several dp groups share a NIC as in `rings_on_nic`, and the memory of 1F1B must fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from holmes_core.records.plan import PlanRank
from holmes_runtime.config.codec import Codec
from planner.cost.collectives import PassTimes
from planner.problem.candidates import Candidate
from planner.problem.coefficients import Coefficients, are_alike, crossings_of, joined_s
from planner.problem.exchange_rates import Site, are_even, rings_on_nic, sync_s_per_byte, trunk_slowdowns
from planner.problem.problem import Problem
from planner.tolerances import ROUNDING

MAX_PRICED = 1024  # pairs of sites, each with the coefficients of one candidate
PortName = tuple[object, ...]
"""A NIC of a host, out or in, or a trunk or an uplink in one direction."""

Ports = tuple[tuple[PortName, float], ...]
"""Ports, each with the seconds of a message that has the port to itself."""


class Edge(NamedTuple):
    """One message between two stages: the seconds for which it occupies the link, and those until it then arrives.

    `codec` is its packing, which the simulations add to the seconds of both stages. `ports` are the NICs, trunks and
    uplinks that it may share with other edges.
    """

    busy_s: float
    latency_s: float = 0.0
    codec: Codec = "none"
    ports: Ports = ()

    @property
    def fill_s(self) -> float:
        """The seconds added to a step in one direction: one message in the fill, and its latency again for the norm."""
        return self.busy_s + 2 * self.latency_s

    def paced_s(self, coeffs: Coefficients) -> float:
        """Return the seconds that bound the pace, without latency if enough micro-batches are in flight."""
        return self.busy_s if coeffs.hides_edges else self.busy_s + self.latency_s


NO_EDGE = Edge(0.0)


class ReplicaKind(NamedTuple):
    """Replicas with the same sites: their micro-batches, the seconds of each stage, and one message on each edge.

    `port_s` is the time a micro-batch needs on the busiest NIC, trunk or uplink that edges share, in one direction.
    """

    microbatches: int
    stage_s: tuple[float, ...]
    edges: tuple[Edge, ...]
    port_s: float = 0.0


class StageExchange(NamedTuple):
    """The exchange of one stage's gradients and weights: its number of layers, and the seconds per byte."""

    num_layers: int
    s_per_byte: float


def step_s(coeffs: Coefficients, lanes: Sequence[ReplicaKind], exchanges: Sequence[StageExchange]) -> float:
    """Return the seconds of one step, from its lanes and from the exchanges by stage: the formula above."""
    seconds = max(lane_s(coeffs, lane) for lane in lanes)
    if coeffs.candidate.dp == 1:
        return seconds
    slowest_stages_s = map(max, zip(*(lane.stage_s for lane in lanes), strict=True))
    unlike = {  # most of many stages are alike
        (per_byte, coeffs.sync_bytes(stage, held), stage_s)
        for stage, ((held, per_byte), stage_s) in enumerate(zip(exchanges, slowest_stages_s, strict=True))
    }
    return seconds + max(exposed_sync_s(coeffs, *each) for each in unlike)


def lane_s(coeffs: Coefficients, lane: ReplicaKind) -> float:
    """Return the seconds of the lane's micro-batches, without gradients."""
    slowest_edge_s = max((edge.paced_s(coeffs) for edge in lane.edges), default=0.0)
    pace_s = max(pace_of(coeffs, max(lane.stage_s), slowest_edge_s), lane.port_s)
    slowest_s = max(lane.stage_s)
    fill_s = coeffs.fill_share * (sum(lane.stage_s) - slowest_s) + 2 * sum(edge.fill_s for edge in lane.edges)
    return (lane.microbatches - 1) * pace_s + slowest_s + fill_s


def pace_of(coeffs: Coefficients, stage_s: float, edge_s: float) -> float:
    """Return the seconds per micro-batch of the steady state, for the slowest stage and the slowest edge."""
    return max(stage_s, edge_s) if coeffs.hides_edges else stage_s + edge_s


def layers_within(seconds: float, layer_s: float, most: int) -> int:
    """Return the number of layers of `layer_s` within `seconds`, at most `most`."""
    if seconds < 0:
        return 0
    return min(most, int(seconds * (1 + ROUNDING) / layer_s)) if layer_s else most


def site_stage_s(
    coeffs: Coefficients, site: Site, num_layers: int, ends: tuple[bool, bool], sharers: Site | None = None
) -> float:
    """Return the seconds of forward and backward of one micro-batch, at the pace of the slowest class of `site`.

    `ends` states if it is the first and if it is the last stage. `sharers`: the classes whose replicas share the
    stage's weights under ZeRO-3, if there are more than in the site.
    """
    layer_s = max([coeffs.layer_s[c] for c in site])
    if coeffs.weight_bytes is not None:
        layer_s = max(layer_s, least_pass(coeffs, sharers or site).both_s)
    is_first, is_last = ends
    if is_first and coeffs.first_dense:
        rest, dense_s = num_layers - coeffs.first_dense, max([coeffs.dense_s[c] for c in site])
        layers_s = rest * layer_s + dense_s if rest >= 0 else num_layers / coeffs.first_dense * dense_s
    else:
        layers_s = num_layers * layer_s
    return layers_s + max([coeffs.head_s[c] for c in site]) if is_last else layers_s


@lru_cache(maxsize=MAX_PRICED)
def least_pass(coeffs: Coefficients, sharers: Site) -> PassTimes:
    """Return the least seconds of a layer whose weights are shared by replicas in several classes; 0 inside one."""
    if coeffs.weight_bytes is None or len(sharers) == 1:
        return PassTimes(0.0, 0.0)
    per_byte = sync_s_per_byte(coeffs, sharers, rings_on_nic(coeffs, sharers), is_even=False)
    return PassTimes(*(size * per_byte for size in coeffs.weight_bytes))


@lru_cache(maxsize=MAX_PRICED)
def edge_of(coeffs: Coefficients, before: Site, after: Site) -> Edge:
    """Return one message between stages on two sites, on different hosts."""
    classes = {*before, *after}
    nics_s = joined_s(coeffs, classes, coeffs.fabric_edge_s, coeffs.shared_edge_s)
    if not coeffs.crossings:
        return Edge(nics_s)
    crossings = tuple(crossings_of(coeffs, classes))
    return Edge(max(nics_s, *(each.edge_s for each in crossings)), max(each.latency_s for each in crossings))


class NicUse(NamedTuple):
    """A host's NICs on one network, and the seconds of an edge's message that has them to itself."""

    name: str
    use_s: float


@lru_cache(maxsize=MAX_PRICED)
def nic_use(coeffs: Coefficients, site: Site, other: Site) -> NicUse:
    """Return an edge's use of a host of `site`, to `other`, at the pace of the slowest class."""
    on_fabric = are_alike(coeffs, {*site, *other})
    name = "fabric" if on_fabric and not any(coeffs.has_one_nic[c] for c in site) else "shared"
    return NicUse(name, max((coeffs.fabric_port_s if on_fabric else coeffs.shared_port_s)[c] for c in site))


def shared_wires_s(coeffs: Coefficients, site: Site, other: Site) -> dict[PortName, float]:
    """Return the seconds of an edge's messages on the trunk between two sites and the uplinks of their clusters."""
    if not coeffs.shares_wires:
        return {}
    here, there = (frozenset(coeffs.cluster[c] for c in each) for each in (site, other))
    found: dict[PortName, float] = {(x,): coeffs.uplink_edge_s.get(x, 0.0) for x in here ^ there}
    if here != there:
        crossings = crossings_of(coeffs, {*site, *other})
        name = (here, there) if sorted(here) < sorted(there) else (there, here)
        found[name] = max(crossing.trunk_edge_s for crossing in crossings)
    return {name: use_s for name, use_s in found.items() if use_s}


def busiest_port_s(coeffs: Coefficients, sites: Sequence[Site], edges: Sequence[Edge]) -> float:
    """Return the seconds of a micro-batch on the busiest NIC, trunk or uplink that edges share, in one direction.

    Free edges are inside a host. All others send activations one way and gradients the other.
    """
    busiest_s, before = 0.0, None
    wires_s: dict[PortName, float] = {}
    for (site, following), edge in zip(pairwise(sites), edges, strict=True):
        if edge == NO_EDGE:
            continue
        for name, use_s in shared_wires_s(coeffs, site, following).items():
            wires_s[name] = wires_s.get(name, 0.0) + use_s
        after = nic_use(coeffs, site, following)
        if before is not None and before.name == after.name:
            busiest_s = max(busiest_s, before.use_s + after.use_s)
        before = nic_use(coeffs, following, site)
    return max([busiest_s, *wires_s.values()])


def exposed_sync_s(coeffs: Coefficients, s_per_byte: float, size_bytes: int, stage_s: float) -> float:
    """Return the seconds of a stage's exchange that its last micro-batch does not hide; at least one layer's."""
    return max(s_per_byte * coeffs.layer_sync_bytes, s_per_byte * size_bytes - stage_s)


class SiteBlock(NamedTuple):
    """Consecutive stages on one site, with the layers of each, in order.

    For a site over several clusters, `is_even` states if each has equally many of a stage's replicas; None: if they
    can hold that.
    """

    site: Site
    layers: tuple[int, ...]
    is_even: bool | None = None


def blocks_step_s(coeffs: Coefficients, blocks: Sequence[SiteBlock]) -> float:
    """Return the seconds of one step with stages in blocks and each stage's replicas on its site, as in the program."""
    exchanges: list[StageExchange] = []
    stages: list[float] = []
    last = sum(len(block.layers) for block in blocks) - 1
    for site, layers, is_even in blocks:
        per_byte = sync_s_per_byte(coeffs, site, rings_on_nic(coeffs, site), is_even=is_even)
        stage_s = {held: site_stage_s(coeffs, site, held, (False, False)) for held in set(layers)}
        for held in layers:
            ends = not stages, len(stages) == last
            stages.append(site_stage_s(coeffs, site, held, ends) if any(ends) else stage_s[held])
            exchanges.append(StageExchange(held, per_byte))
    edges, sites = tuple(_edges(coeffs, blocks)), [block.site for block in blocks for _ in block.layers]
    lane = ReplicaKind(coeffs.num_microbatches, tuple(stages), edges, busiest_port_s(coeffs, sites, edges))
    return step_s(coeffs, [lane], exchanges)


def _edges(coeffs: Coefficients, blocks: Sequence[SiteBlock]) -> Iterator[Edge]:
    """Yield one message for each edge; it takes no time between stages that share a host."""
    before: SiteBlock | None = None
    for block in blocks:
        if before is not None:
            yield edge_of(coeffs, before.site, block.site)
        inside = edge_of(coeffs, block.site, block.site)
        per_host = coeffs.stages_per_host[block.site[0]] if len(block.site) == 1 else 1
        yield from (inside if position % per_host == 0 else NO_EDGE for position in range(1, len(block.layers)))
        before = block


Hosts = Sequence[Sequence[str]]
"""The host of each tensor group, by stage and replica."""


def price_ranks_s(
    problem: Problem,
    candidate: Candidate,
    layers: Sequence[int],
    ranks: Sequence[PlanRank],
    microbatches: Sequence[int],
) -> float:
    """Return the closed-form seconds of one step. `layers` are by pipeline rank, all its chunks together."""
    hosts = {(rank.pp_rank, rank.dp_rank): rank.host for rank in ranks if rank.tp_rank == 0}
    by_stage = [[hosts[stage, replica] for replica in range(candidate.dp)] for stage in range(candidate.pp)]
    return price_hosts_s(problem.coefficients(candidate), problem.fleet.class_of, layers, by_stage, microbatches)


def price_hosts_s(
    coeffs: Coefficients,
    class_of: Mapping[str, int],
    layers: Sequence[int],
    hosts: Hosts,
    microbatches: Sequence[int],
    two_levels: bool = True,
) -> float:
    """Return the closed-form seconds of one step with the tensor group of each stage and replica on the given host.

    Without `two_levels`, replicas always exchange in one ring.
    """
    columns: dict[tuple[int, ...], list[int]] = {}
    for replica in range(coeffs.candidate.dp):
        columns.setdefault(tuple(class_of[row[replica]] for row in hosts), []).append(replica)
    if all(len(set(column)) == 1 for column in columns):
        parts = list(columns.values())
    else:
        parts = [list(range(coeffs.candidate.dp))]
    lanes = [_lane(coeffs, class_of, layers, hosts, replicas, microbatches) for replicas in parts]
    rates = _sync_rates(coeffs, class_of, layers, hosts, two_levels)
    return step_s(coeffs, lanes, [StageExchange(held, rate) for held, rate in zip(layers, rates, strict=True)])


def _lane(
    coeffs: Coefficients,
    class_of: Mapping[str, int],
    layers: Sequence[int],
    hosts: Hosts,
    replicas: Sequence[int],
    microbatches: Sequence[int],
) -> ReplicaKind:
    last = len(layers) - 1
    sites = [tuple(sorted({class_of[row[replica]] for replica in replicas})) for row in hosts]
    stages = tuple(
        site_stage_s(coeffs, site, held, (s == 0, s == last), tuple(sorted({class_of[host] for host in hosts[s]})))
        for s, (site, held) in enumerate(zip(sites, layers, strict=True))
    )
    edges = []
    for before, after in pairwise(hosts):
        ends = {(before[replica], after[replica]) for replica in replicas}
        pairs = {(class_of[a], class_of[b]) for a, b in ends if a != b or not coeffs.aligned}
        found = [edge_of(coeffs, (a,), (b,)) for a, b in pairs] or [NO_EDGE]
        edges.append(Edge(max(edge.busy_s for edge in found), max(edge.latency_s for edge in found)))
    busiest = max(microbatches[replica] for replica in replicas)
    return ReplicaKind(busiest, stages, tuple(edges), busiest_port_s(coeffs, sites, edges))


def _sync_rates(
    coeffs: Coefficients, class_of: Mapping[str, int], layers: Sequence[int], hosts: Hosts, two_levels: bool
) -> list[float]:
    """Return, by stage, the seconds per byte of its exchange, counting dp groups that share a host's NIC or a trunk.

    They count as at least the number that `rings_on_nic` returns.
    """
    sites = [tuple(sorted({class_of[host] for host in row})) for row in hosts]
    far = [len({coeffs.cluster[c] for c in site}) > 1 for site in sites]
    leaving = [set(row) if len(set(row)) > 1 else set() for row in hosts]
    uses = Counter((host, far[s]) for s, members in enumerate(leaving) for host in members)
    slowdowns = trunk_slowdowns(coeffs, sites, layers)
    rates = []
    for s, site in enumerate(sites):
        rings = max((uses[host, far[s]] for host in leaving[s]), default=0)
        is_even = two_levels and are_even(coeffs.cluster[class_of[host]] for host in hosts[s])
        rings = max(rings, rings_on_nic(coeffs, site))
        rates.append(sync_s_per_byte(coeffs, site, rings, slowdowns[s], is_even))
    return rates
