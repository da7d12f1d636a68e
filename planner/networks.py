"""Process groups, and for each the network its members share: name, interfaces, NCCL transport, bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.inventory import Cluster, Inventory, Network, NetworkPort
from holmes_core.job import Job
from holmes_core.plan import Axis, NetName, PlanGroup, PlanRank

SHARED = "shared"
RDMA_KINDS = ("InfiniBand", "RoCE")


@dataclass(frozen=True)
class Route:
    """How some hosts reach each other. Per host, in the order asked for: interface, and bytes/s of its NICs there.

    A bandwidth is None where the inventory does not know it.
    """

    network: str
    net_name: NetName | None
    interfaces: tuple[str, ...]
    bandwidths: tuple[float | None, ...]


@dataclass(frozen=True)
class DemandedGroup:
    """A process group to be: its name, its axis and its ranks."""

    name: str
    axis: Axis
    ranks: tuple[PlanRank, ...]

    def crossings(self) -> list[tuple[int, int]]:
        """Pairs (sender, receiver), as positions in `ranks`, whose traffic leaves the sender's host.

        A dp or tp group is a ring in the order of its ranks; in an edge the one computed first in that direction sends.
        """
        n = len(self.ranks)
        if self.axis in ("pp_forward", "pp_backward"):
            pairs = [(0, 1)] if self.axis == "pp_forward" else [(1, 0)]
        else:
            pairs = [(i, (i + 1) % n) for i in range(n)]
        return [(i, j) for i, j in pairs if self.ranks[i].host != self.ranks[j].host]


def shared_network(inventory: Inventory) -> Network:
    """The network all hosts share; with a single cluster and no other network, its fabric.

    Raises HolmesError if several clusters share none.
    """
    if inventory.shared is not None:
        return inventory.shared
    if len(inventory.clusters) == 1:
        return inventory.clusters[0].fabric
    names = ", ".join(cluster.name for cluster in inventory.clusters)
    raise HolmesError(
        f"NET-NO-SHARED-SUBNET: clusters {names} have no network in common, so nothing can pass between them",
        "give every host an address on one IPv4 network, or plan on one cluster: `holmes probe` with its hosts alone",
        ANSWER_IS_NO,
    )


def route(inventory: Inventory, job: Job, hosts: Sequence[str]) -> Route:
    """The network `hosts` use among themselves: the fabric of their one cluster, else the shared network.

    On CUDA, NCCL takes one list of socket interfaces for the whole process, the shared ones (NCCL_FACTS): inside a
    cluster it uses the fabric through RDMA, or where the fabric's netdevs are the shared ones.
    Raises HolmesError naming a host that is not on that network.
    """
    cluster = next((c for c in inventory.clusters if set(hosts) <= set(c.hosts)), None)
    if cluster is not None and job.device == "cpu":
        return _socket_route(cluster.name, cluster.fabric, hosts, None)
    if cluster is not None and _all_rdma(cluster, hosts):
        return _rdma_route(inventory, cluster, hosts)
    net_name: NetName | None = "Socket" if job.device == "cuda" else None
    shared = shared_network(inventory)
    same = cluster is not None and all(_netdev(cluster.fabric, host) == _netdev(shared, host) for host in hosts)
    name = cluster.name if cluster is not None and same else SHARED
    return _socket_route(name, shared, hosts, net_name)


def require_bandwidth(path: Route, hosts: Sequence[str]) -> tuple[float, ...]:
    """The bandwidths of `path` in bytes/s. Raises HolmesError naming host and netdev where one is not known."""
    for host, interface, bandwidth in zip(hosts, path.interfaces, path.bandwidths, strict=True):
        if bandwidth is None:
            raise HolmesError(
                f"host {host}: the bandwidth of {interface} on network {path.network} is not known",
                f"write it into hosts.yaml, for example `speeds_gbps: {{{interface}: 10}}`, and probe again",
                ANSWER_IS_NO,
            )
    return tuple(bandwidth for bandwidth in path.bandwidths if bandwidth is not None)


def port_on(network: Network, host: str) -> NetworkPort:
    """The port of `host`. Raises HolmesError if it has none or no interface for it is known."""
    port = network.port_of(host)
    if port is None or port.netdev is None:
        raise HolmesError(
            f"host {host}: no interface on network {network.name} is known",
            f"give {host} an address there and probe again, or leave it out of hosts.yaml",
            ANSWER_IS_NO,
        )
    return port


def make_groups(inventory: Inventory, job: Job, ranks: Sequence[PlanRank]) -> tuple[PlanGroup, ...]:
    """All process groups of the job: dp by stage, then edges by replica and stage, forward before backward, then tp.

    A group's bandwidth is the least share of a NIC any member gets, when all groups of the same axis send at once.
    """
    members = list(demanded_groups(ranks))
    routes = [route(inventory, job, [rank.host for rank in member.ranks]) for member in members]
    flows = _count_flows(members, routes)
    return tuple(
        PlanGroup(
            name=member.name,
            axis=member.axis,
            ranks=tuple(rank.rank for rank in member.ranks),
            network=path.network,
            interfaces=path.interfaces,
            net_name=path.net_name,
            bandwidth_bytes_per_s=_group_bandwidth(member, path, flows),
        )
        for member, path in zip(members, routes, strict=True)
    )


def demanded_groups(ranks: Sequence[PlanRank]) -> Iterator[DemandedGroup]:
    """The groups the coordinates of `ranks` demand, in plan order."""
    at = {(rank.pp_rank, rank.dp_rank, rank.tp_rank): rank for rank in ranks}
    pp, dp, tp = (1 + max(coordinate[axis] for coordinate in at) for axis in range(3))
    suffixes = [f"/shard{shard}" if tp > 1 else "" for shard in range(tp)]
    if dp > 1:
        for stage in range(pp):
            for shard, suffix in enumerate(suffixes):
                replicas = tuple(at[stage, replica, shard] for replica in range(dp))
                yield DemandedGroup(f"dp/stage{stage}{suffix}", "dp", replicas)
    for replica in range(dp):
        for before, after in pairwise(range(pp)):
            for shard, suffix in enumerate(suffixes):
                name = f"edge/replica{replica}/{before}-{after}"
                ends = (at[before, replica, shard], at[after, replica, shard])
                yield DemandedGroup(f"{name}/forward{suffix}", "pp_forward", ends)
                yield DemandedGroup(f"{name}/backward{suffix}", "pp_backward", ends)
    if tp > 1:
        for stage in range(pp):
            for replica in range(dp):
                shards = tuple(at[stage, replica, shard] for shard in range(tp))
                yield DemandedGroup(f"tp/stage{stage}/replica{replica}", "tp", shards)


def _all_rdma(cluster: Cluster, hosts: Sequence[str]) -> bool:
    ports = [cluster.fabric.port_of(host) for host in hosts]
    known = all(port is not None and port.hcas and port.rdma_bandwidth_bytes_per_s for port in ports)
    return cluster.fabric.kind in RDMA_KINDS and known


def _rdma_route(inventory: Inventory, cluster: Cluster, hosts: Sequence[str]) -> Route:
    """RDMA through the fabric. A port without a netdev (no IPoIB) names the shared one, which NCCL's bootstrap uses."""
    interfaces, bandwidths = [], []
    for host in hosts:
        port = cluster.fabric.port_of(host)
        assert port is not None
        interfaces.append(port.netdev or str(port_on(shared_network(inventory), host).netdev))
        bandwidths.append(port.rdma_bandwidth_bytes_per_s)
    return Route(cluster.name, "IB", tuple(interfaces), tuple(bandwidths))


def _socket_route(name: str, network: Network, hosts: Sequence[str], net_name: NetName | None) -> Route:
    ports = [port_on(network, host) for host in hosts]
    interfaces = tuple(str(port.netdev) for port in ports)
    return Route(name, net_name, interfaces, tuple(port.bandwidth_bytes_per_s for port in ports))


def _netdev(network: Network, host: str) -> str | None:
    port = network.port_of(host)
    return port.netdev if port else None


Flow = tuple[Axis, str, str, str]


def _flows_of(member: DemandedGroup, path: Route) -> Iterator[tuple[int, Flow]]:
    """Each use the group makes of a NIC: the member's position, and (axis, host, interface, way out or in)."""
    for sender, receiver in member.crossings():
        for position, way in ((sender, "out"), (receiver, "in")):
            yield position, (member.axis, member.ranks[position].host, path.interfaces[position], way)


def _count_flows(members: Sequence[DemandedGroup], routes: Sequence[Route]) -> Counter[Flow]:
    """How many flows of one axis share each NIC in each direction."""
    return Counter(flow for member, path in zip(members, routes, strict=True) for _, flow in _flows_of(member, path))


def _group_bandwidth(member: DemandedGroup, path: Route, flows: Counter[Flow]) -> float | None:
    """The least share of a NIC; None where all members are on one host and the NIC's rate is not known."""
    uses = list(_flows_of(member, path))
    if not uses:
        return None if None in path.bandwidths else min(b for b in path.bandwidths if b is not None)
    bandwidths = require_bandwidth(path, [rank.host for rank in member.ranks])
    return min(bandwidths[position] / flows[flow] for position, flow in uses)
