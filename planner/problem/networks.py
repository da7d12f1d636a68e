"""Process groups, and for each the network its members share: name, interfaces, NCCL transport, bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.inventory import Cluster, Inventory, Network, NetworkPort
from holmes_core.records.job import Job
from holmes_core.records.plan import Axis, NetName, PlanGroup, PlanRank
from planner.cost.collectives import tcp_payload_share

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
class HostRates:
    """Bytes/s of one host's NICs to its own cluster, by which transport, and to everywhere; None when not known."""

    net_name: NetName | None
    fabric_bytes_per_s: float | None
    shared_bytes_per_s: float | None


class DemandedGroup(NamedTuple):
    """A process group to be: its name, its axis, and its ranks with the host of each."""

    name: str
    axis: Axis
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]


class Networks:
    """The networks of an inventory, indexed by host, so that a question about a host takes no look at the others."""

    def __init__(self, inventory: Inventory, job: Job) -> None:
        self._on_cpu = job.device == "cpu"
        self._cluster_of = {host: cluster for cluster in inventory.clusters for host in cluster.hosts}
        mtus = {(host.name, netdev.name): netdev.mtu for host in inventory.hosts for netdev in host.netdevs}

        def priced(ports: Iterable[NetworkPort]) -> dict[str, NetworkPort]:
            return {port.host: _as_priced(port, mtus.get((port.host, port.netdev or "")), job) for port in ports}

        self._fabric_ports = priced(port for cluster in inventory.clusters for port in cluster.fabric.ports)
        self._shared = shared_network(inventory)
        self._shared_ports = priced(self._shared.ports)
        self._latencies = _read_latencies(inventory)

    def shared_port(self, host: str) -> NetworkPort:
        """The port of `host` on the network all share. Raises HolmesError if it has none."""
        return _known_port(self._shared_ports.get(host), self._shared.name, host)

    def cluster(self, host: str) -> Cluster:
        """The cluster of `host`."""
        return self._cluster_of[host]

    def fabric_port(self, host: str) -> NetworkPort | None:
        """The port of `host` on the fabric of its cluster, None if it has none."""
        return self._fabric_ports.get(host)

    def uses_rdma(self, host: str) -> bool:
        """Whether NCCL reaches the host's own cluster through RDMA, at a rate that is known."""
        port = self._fabric_ports.get(host)
        known = port is not None and port.hcas and port.rdma_bandwidth_bytes_per_s
        return bool(known) and not self._on_cpu and self._cluster_of[host].fabric.kind in RDMA_KINDS

    def latency_s(self, clusters: Collection[str]) -> float:
        """Seconds one message is under way at most between hosts of `clusters`; 0 where nothing was measured."""
        pairs = self._latencies.items()
        return max((seconds for pair, seconds in pairs if pair <= set(clusters)), default=0.0)

    def rates(self, host: str) -> HostRates:
        """What the host's NICs offer; None also where it has no port on the network."""
        shared = self._shared_ports.get(host)
        shared_bytes_per_s = shared.bandwidth_bytes_per_s if shared is not None else None
        fabric = self._fabric_ports.get(host)
        if self._on_cpu:
            return HostRates(None, fabric.bandwidth_bytes_per_s if fabric is not None else None, shared_bytes_per_s)
        if fabric is not None and self.uses_rdma(host):
            return HostRates("IB", fabric.rdma_bandwidth_bytes_per_s, shared_bytes_per_s)
        return HostRates("Socket", shared_bytes_per_s, shared_bytes_per_s)

    def route(self, hosts: Sequence[str]) -> Route:
        """The network `hosts` use among themselves: the fabric of their one cluster, else the shared network.

        On CUDA, NCCL takes one list of socket interfaces for the whole process, the shared ones (NCCL_FACTS): inside a
        cluster it uses the fabric through RDMA, or where the fabric's netdevs are the shared ones.
        Raises HolmesError naming a host that is not on that network.
        """
        cluster = self._cluster_of.get(hosts[0])
        inside = cluster is not None and all(self._cluster_of.get(host) is cluster for host in hosts)
        if inside and cluster is not None and self._on_cpu:
            ports = [_known_port(self._fabric_ports.get(host), cluster.fabric.name, host) for host in hosts]
            return _socket_route(cluster.name, ports, None)
        if inside and cluster is not None and all(self.uses_rdma(host) for host in hosts):
            return self._rdma_route(cluster, hosts)
        ports = [self.shared_port(host) for host in hosts]
        same = inside and all(
            (fabric := self._fabric_ports.get(port.host)) is not None and fabric.netdev == port.netdev for port in ports
        )
        name = cluster.name if same and cluster is not None else SHARED
        return _socket_route(name, ports, None if self._on_cpu else "Socket")

    def shared_route(self, host: str) -> Route:
        """The network all hosts share, as `host` uses it."""
        return _socket_route(SHARED, [self.shared_port(host)], None if self._on_cpu else "Socket")

    def _rdma_route(self, cluster: Cluster, hosts: Sequence[str]) -> Route:
        """RDMA through the fabric. A port without a netdev (no IPoIB) names the shared one, for NCCL's bootstrap."""
        ports = [self._fabric_ports[host] for host in hosts]
        interfaces = tuple(port.netdev or str(self.shared_port(port.host).netdev) for port in ports)
        return Route(cluster.name, "IB", interfaces, tuple(port.rdma_bandwidth_bytes_per_s for port in ports))


def _read_latencies(inventory: Inventory) -> dict[frozenset[str], float]:
    """Seconds by the clusters at both ends, one name inside a cluster: the largest median of the link test."""
    found: dict[frozenset[str], float] = {}
    for link in inventory.links:
        if link.latency_s is not None:
            key = frozenset(link.clusters)
            found[key] = max(found.get(key, 0.0), link.latency_s.median)
    return found


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


def require_bandwidth(path: Route, hosts: Sequence[str]) -> tuple[float, ...]:
    """The bandwidths of `path` in bytes/s. Raises HolmesError naming host and netdev where one is not known."""
    for host, interface, bandwidth in zip(hosts, path.interfaces, path.bandwidths, strict=True):
        if not bandwidth:
            seen = "not known" if bandwidth is None else "0"
            raise HolmesError(
                f"host {host}: the bandwidth of {interface} on network {path.network} is {seen}",
                f"write it into hosts.yaml, for example `speeds_gbps: {{{interface}: 10}}`, and probe again",
                ANSWER_IS_NO,
            )
    return tuple(bandwidth for bandwidth in path.bandwidths if bandwidth is not None)


def _known_port(port: NetworkPort | None, network: str, host: str) -> NetworkPort:
    if port is None or port.netdev is None:
        raise HolmesError(
            f"host {host}: no interface on network {network} is known",
            f"give {host} an address there and probe again, or leave it out of hosts.yaml",
            ANSWER_IS_NO,
        )
    return port


def make_groups(networks: Networks, ranks: Sequence[PlanRank], chunks: int = 1) -> tuple[PlanGroup, ...]:
    """All process groups of the job: dp by stage, then edges by replica and stage, forward before backward, then tp.

    A group's bandwidth is the least share of a NIC any member gets, when all groups of the same axis send at once.
    """
    demanded = list(demanded_groups(ranks, chunks))
    alike = Counter((member.axis, member.hosts) for member in demanded)
    routes = {hosts: networks.route(hosts) for hosts in dict.fromkeys(hosts for _, hosts in alike)}
    uses = {(axis, hosts): _flows(axis, hosts, routes[hosts]) for axis, hosts in alike}
    flows: Counter[Flow] = Counter()
    for key, count in alike.items():
        for _, flow in uses[key]:
            flows[flow] += count
    rates = {key: _group_bandwidth(key[1], routes[key[1]], uses[key], flows) for key in alike}
    return tuple(
        PlanGroup(
            name=name,
            axis=axis,
            ranks=members,
            network=(route := routes[hosts]).network,
            interfaces=route.interfaces,
            net_name=route.net_name,
            bandwidth_bytes_per_s=rates[axis, hosts],
        )
        for name, axis, members, hosts in demanded
    )


def demanded_groups(ranks: Sequence[PlanRank], chunks: int = 1) -> Iterator[DemandedGroup]:
    """The groups the coordinates of `ranks` demand, in plan order.

    With several chunks of the model on a rank, an edge leads from the last pipeline rank back to the first as well.
    """
    at = {(rank.pp_rank, rank.dp_rank, rank.tp_rank): (rank.rank, rank.host) for rank in ranks}
    pp, dp, tp = (1 + max(coordinate[axis] for coordinate in at) for axis in range(3))
    suffixes = [f"/shard{shard}" if tp > 1 else "" for shard in range(tp)]
    if dp > 1:
        for stage in range(pp):
            for shard, suffix in enumerate(suffixes):
                replicas = [at[stage, replica, shard] for replica in range(dp)]
                yield DemandedGroup(f"dp/stage{stage}{suffix}", "dp", *zip(*replicas, strict=True))
    edges = [*pairwise(range(pp)), *([(pp - 1, 0)] if chunks > 1 else [])]
    for replica in range(dp):
        for before, after in edges:
            for shard, suffix in enumerate(suffixes):
                name = f"edge/replica{replica}/{before}-{after}"
                (first, first_host), (second, second_host) = at[before, replica, shard], at[after, replica, shard]
                ranks_and_hosts = (first, second), (first_host, second_host)
                yield DemandedGroup(f"{name}/forward{suffix}", "pp_forward", *ranks_and_hosts)
                yield DemandedGroup(f"{name}/backward{suffix}", "pp_backward", *ranks_and_hosts)
    if tp > 1:
        for stage in range(pp):
            for replica in range(dp):
                shards = [at[stage, replica, shard] for shard in range(tp)]
                yield DemandedGroup(f"tp/stage{stage}/replica{replica}", "tp", *zip(*shards, strict=True))


def _as_priced(port: NetworkPort, mtu: int | None, job: Job) -> NetworkPort:
    """The port at the rates that payload gets: without TCP's framing, and by the part that a calibrating run got."""
    calibration = job.compute.calibration
    part = calibration.network_efficiency if calibration is not None else 1.0
    parts = {"bandwidth_bytes_per_s": part * tcp_payload_share(mtu), "rdma_bandwidth_bytes_per_s": part}
    known = {name: rate * parts[name] for name in parts if (rate := getattr(port, name)) is not None}
    return port.model_copy(update=known)


def _socket_route(name: str, ports: Sequence[NetworkPort], net_name: NetName | None) -> Route:
    interfaces = tuple(str(port.netdev) for port in ports)
    return Route(name, net_name, interfaces, tuple(port.bandwidth_bytes_per_s for port in ports))


Flow = tuple[Axis, str, str, str]


def _flows(axis: Axis, hosts: Sequence[str], path: Route) -> list[tuple[int, Flow]]:
    """Each use a group makes of a NIC: the member's position, and (axis, host, interface, way out or in)."""
    return [
        (position, (axis, hosts[position], path.interfaces[position], way))
        for ends in _crossings(axis, hosts)
        for position, way in zip(ends, ("out", "in"), strict=True)
    ]


def _crossings(axis: Axis, hosts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs (sender, receiver), as positions in `hosts`, whose traffic leaves the sender's host.

    A dp or tp group is a ring in the order of its ranks; in an edge the one computed first in that direction sends.
    """
    n = len(hosts)
    if axis in ("pp_forward", "pp_backward"):
        pairs = [(0, 1)] if axis == "pp_forward" else [(1, 0)]
    else:
        pairs = [(i, (i + 1) % n) for i in range(n)]
    return [(i, j) for i, j in pairs if hosts[i] != hosts[j]]


def _group_bandwidth(
    hosts: Sequence[str], path: Route, uses: Sequence[tuple[int, Flow]], flows: Counter[Flow]
) -> float | None:
    """The least share of a NIC; None where all members are on one host and the NIC's rate is not known."""
    if not uses:
        return None if None in path.bandwidths else min(b for b in path.bandwidths if b is not None)
    bandwidths = require_bandwidth(path, hosts)
    return min(bandwidths[position] / flows[flow] for position, flow in uses)
