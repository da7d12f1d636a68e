"""Process groups: the members of each, their network and their share of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from typing import NamedTuple

from holmes_core.records.job import Job
from holmes_core.records.plan import PlanGroup, PlanRank
from holmes_runtime.config.rank_grid import EDGE_AXES, REPLICA_AXES, Axis, DataParallel, Rank, RankGrid
from planner.cost.collectives import times_as_long
from planner.problem.networks import NetworkRoute, Networks, SharedWire, require_bandwidth


class DemandedGroup(NamedTuple):
    """A process group to be made: its name, its axis, and its ranks with the host of each."""

    name: str
    axis: Axis
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]


def make_groups(
    networks: Networks,
    ranks: Sequence[PlanRank],
    parameters: Sequence[int],
    chunks: int = 1,
    data_parallel: DataParallel = "flat",
    is_tied: bool = False,
    cp: int = 1,
    ep: int = 1,
) -> tuple[PlanGroup, ...]:
    """Return all process groups of the job. Order: dp by stage; edges by replica and stage, forward before backward;
    tp; groups of `cp` replicas that share sequences; pairs of ranks of a model that `is_tied`; groups of `ep` ranks
    that share experts; ranks with the same experts.

    Groups of the same axis send at once. A group's share of a NIC, or of a cluster's trunk or uplink, is the smallest
    share of any member. Replicas that exchange more have a trunk to themselves at the end; `parameters` are the sizes
    by pipeline rank.
    """
    demanded = list(demanded_groups(ranks, chunks, data_parallel, is_tied, cp, ep))
    size_of = {  # 1 for edges, which all send during the step
        member.name: parameters[ranks[member.ranks[0]].pp_rank] if member.axis in REPLICA_AXES else 1.0
        for member in demanded
    }
    alike = Counter((member.axis, member.hosts) for member in demanded)
    routes = {hosts: networks.route(hosts) for hosts in dict.fromkeys(hosts for _, hosts in alike)}
    uses = {(axis, hosts): _flows(axis, hosts, routes[hosts]) for axis, hosts in alike}
    trunks = {(axis, hosts): _shared_wires(networks, axis, hosts) for axis, hosts in alike}
    flows = Counter[Flow]()
    for key, count in alike.items():
        for _, flow in uses[key]:
            flows[flow] += count
    sizes = defaultdict[tuple[Axis, SharedWire], list[float]](list)
    for member in demanded:
        for wire, _ in trunks[member.axis, member.hosts]:
            sizes[member.axis, wire].append(size_of[member.name])
    longer = {use: times_as_long(sharing) for use, sharing in sizes.items()}
    rates = {key: _group_bandwidth(key[1], routes[key[1]], uses[key], flows) for key in alike}
    joined = {hosts: _joined(networks, hosts) for hosts in routes}
    return tuple(
        PlanGroup(
            name=name,
            axis=axis,
            ranks=members,
            network=(route := routes[hosts]).network,
            interfaces=route.interfaces,
            net_name=route.net_name,
            nvlink=route.nvlink,
            bandwidth_bytes_per_s=rates[axis, hosts],
            trunk_bytes_per_s=min(
                (rate / longer[axis, wire][size_of[name]] for wire, rate in trunks[axis, hosts]), default=None
            ),
            latency_s=joined[hosts].latency_s,
            streams=joined[hosts].streams,
        )
        for name, axis, members, hosts in demanded
    )


def expert_ranks(job: Job) -> int:
    """Return the number of ranks in a plan's groups of experts; 1 for other trainers, which make their own groups."""
    return job.ep if job.is_bundled else 1


def demanded_groups(
    ranks: Sequence[PlanRank],
    chunks: int = 1,
    data_parallel: DataParallel = "flat",
    is_tied: bool = False,
    cp: int = 1,
    ep: int = 1,
) -> Iterator[DemandedGroup]:
    """Yield the groups that the coordinates of `ranks` demand, in plan order.

    With several model chunks on a rank, there is also an edge from the last pipeline rank back to the first.
    """
    by_coordinates = {(rank.pp_rank, rank.dp_rank, rank.tp_rank): rank for rank in ranks}
    pp, dp, tp = (1 + max(coordinate[axis] for coordinate in by_coordinates) for axis in range(3))
    suffixes = [f"/shard{shard}" if tp > 1 else "" for shard in range(tp)]
    if dp > 1:
        for stage in range(pp):
            for shard, suffix in enumerate(suffixes):
                replicas = [by_coordinates[stage, replica, shard] for replica in range(dp)]
                yield from _exchanges(f"stage{stage}{suffix}", replicas, data_parallel)
    edges = [*pairwise(range(pp)), *([(pp - 1, 0)] if chunks > 1 else [])]
    for replica, (before, after), (shard, suffix) in product(range(dp), edges, enumerate(suffixes)):
        name = f"edge/replica{replica}/{before}-{after}"
        ends = by_coordinates[before, replica, shard], by_coordinates[after, replica, shard]
        yield _demanded(f"{name}/forward{suffix}", "pp_forward", ends)
        yield _demanded(f"{name}/backward{suffix}", "pp_backward", ends)
    for stage, replica in product(range(pp), range(dp if tp > 1 else 0)):
        shards = [by_coordinates[stage, replica, shard] for shard in range(tp)]
        yield _demanded(f"tp/stage{stage}/replica{replica}", "tp", shards)
    for stage, first, (shard, suffix) in product(range(pp), range(0, dp if cp > 1 else 0, cp), enumerate(suffixes)):
        sharing = [by_coordinates[stage, first + part, shard] for part in range(cp)]
        yield _demanded(f"cp/stage{stage}/sequences{first // cp}{suffix}", "cp", sharing)
    if is_tied or ep > tp:
        plain = (Rank(each.rank, each.host, each.cluster, each.pp_rank, each.dp_rank, each.tp_rank) for each in ranks)
        grid = RankGrid(pp, dp, tp, chunks > 1, is_tied, data_parallel, tuple(plain), cp, ep)
        yield from _tied(grid)
        yield from _experts(grid)


def _experts(grid: RankGrid) -> Iterator[DemandedGroup]:
    """Yield the replicas that share experts, and those with the same experts, by stage and shard."""
    found: dict[tuple[Axis, tuple[int, ...]], str] = {}
    for me in sorted(grid.ranks, key=lambda each: (each.pp_rank, each.tp_rank, each.dp_rank)):
        where = f"stage{me.pp_rank}" + (f"/shard{me.tp_rank}" if grid.tp > 1 else "")
        if grid.expert_replicas > 1:
            found.setdefault(("ep", grid.expert_peers(me)), f"ep/{where}/replica{me.dp_rank}")
        for axis, members in grid.expert_exchanges(me).items():
            found.setdefault((axis, members), f"{axis}/{where}/replica{me.dp_rank}")
    for (axis, members), name in found.items():
        yield _demanded(name, axis, [grid.rank(each) for each in members])


def _tied(grid: RankGrid) -> Iterator[DemandedGroup]:
    """Yield the pairs of ranks with the same piece of a tied table, on the first and the last stage."""
    for me in grid.ranks:
        pair = grid.tied(me)
        if pair is not None and me.pp_rank == 0:
            yield _demanded(f"tied/rank{me.rank}", "tied", [grid.rank(each) for each in pair])


def _exchanges(where: str, replicas: Sequence[PlanRank], data_parallel: DataParallel) -> Iterator[DemandedGroup]:
    """Yield the groups in which the replicas of a stage's shard exchange gradients and weights.

    This is one group of all of them, or one in each cluster and one across clusters for each position in a cluster.
    """
    if data_parallel == "flat":
        yield _demanded(f"dp/{where}", "dp", replicas)
        return
    clusters: dict[str, list[PlanRank]] = {}
    for rank in sorted(replicas, key=lambda rank: rank.rank):
        clusters.setdefault(rank.cluster, []).append(rank)
    for name, inside in clusters.items():
        if len(inside) > 1:
            yield _demanded(f"dp/{where}/{name}", "dp", inside)
    if len(clusters) > 1:
        for position, across in enumerate(zip(*clusters.values(), strict=True)):
            yield _demanded(f"dp_across/{where}/{position}", "dp_across", across)


def _demanded(name: str, axis: Axis, members: Sequence[PlanRank | Rank]) -> DemandedGroup:
    return DemandedGroup(name, axis, tuple(rank.rank for rank in members), tuple(rank.host for rank in members))


Flow = tuple[Axis, str, str, str]
"""A use of a NIC: axis, host, interface, out or in."""


def _flows(axis: Axis, hosts: Sequence[str], path: NetworkRoute) -> list[tuple[int, Flow]]:
    """Return each use a group makes of a NIC: the member's position, and (axis, host, interface, out or in)."""
    return [
        (position, (axis, hosts[position], path.interfaces[position], way))
        for ends in _crossings(axis, hosts)
        for position, way in zip(ends, ("out", "in"), strict=True)
    ]


def _crossings(axis: Axis, hosts: Sequence[str]) -> list[tuple[int, int]]:
    """Return the pairs (sender, receiver), as positions in `hosts`, whose traffic leaves the sender's host.

    A dp or tp group is a ring in rank order. On an edge, the stage that computes first in that direction sends.
    """
    n = len(hosts)
    if axis in EDGE_AXES:
        pairs = [(0, 1)] if axis == "pp_forward" else [(1, 0)]
    else:
        pairs = [(i, (i + 1) % n) for i in range(n)]
    return [(i, j) for i, j in pairs if hosts[i] != hosts[j]]


def _group_bandwidth(
    hosts: Sequence[str], path: NetworkRoute, uses: Sequence[tuple[int, Flow]], flows: Counter[Flow]
) -> float | None:
    """Return the least share of a NIC; None if all members are on one host and the NIC's rate is not known."""
    if not uses:
        return None if None in path.bandwidths else min(b for b in path.bandwidths if b is not None)
    bandwidths = require_bandwidth(path, hosts)
    return min(bandwidths[position] / flows[flow] for position, flow in uses)


def _shared_wires(networks: Networks, axis: Axis, hosts: Sequence[str]) -> list[tuple[SharedWire, float]]:
    """Return each use a group makes of a trunk or an uplink with a known rate, with its bytes/s."""
    clusters = [networks.cluster(host).name for host in hosts]
    if len(set(clusters)) == 1:
        return []
    crossings = ((clusters[i], clusters[j]) for i, j in _crossings(axis, hosts))
    return [use for one, other in crossings for use in networks.shared_wires(one, other).items()]


class _PathLimits(NamedTuple):
    """The longest latency of a message between the hosts, and the most streams that their sockets need."""

    latency_s: float
    streams: int


def _joined(networks: Networks, hosts: Sequence[str]) -> _PathLimits:
    if len(set(hosts)) == 1:
        return _PathLimits(0.0, 1)
    clusters = {networks.cluster(host).name for host in hosts}
    ends = combinations(sorted(clusters), 2) if len(clusters) > 1 else [(*clusters, *clusters)]
    connections = [networks.connection(a, b) for a, b in ends]
    streams = max(connection.streams for connection in connections)
    return _PathLimits(networks.latency_s(clusters), streams)
