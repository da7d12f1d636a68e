"""The network that some hosts share: its name, their interfaces on it, NCCL's transport, and the rates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations_with_replacement
from typing import Literal, NamedTuple

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.inventory import Cluster, Inventory, Network, NetworkPort
from holmes_core.records.job import Job
from holmes_core.records.link import Link
from holmes_core.units import bytes_per_s_from_gbps
from holmes_runtime.config.rank_grid import NetName
from holmes_runtime.config.trainer_config import SHARED
from planner.cost.collectives import tcp_payload_share
from planner.cost.measured_link import NOT_MEASURED, MeasuredLink
from planner.cost.slot import nvlink_bytes_per_s
from planner.problem.connections import as_counted, connections_in_tunnel, read_connections, through_hub, tunnel_network

VERBS_KINDS = ("InfiniBand", "RoCE")  # NCCL's own transport takes them
RDMA_KINDS = (*VERBS_KINDS, "EFA")


@dataclass(frozen=True)
class NetworkRoute:
    """The route between some hosts: by host, in the given order, its interface and the bytes/s of its NICs there.

    A bandwidth is None if the inventory lacks it. `ports_bytes_per_s` are the rates of the NICs themselves, which other
    routes use as well. They are higher if a slower path between the hosts was measured.
    """

    network: str
    net_name: NetName | None
    interfaces: tuple[str, ...]
    bandwidths: tuple[float | None, ...]
    ports_bytes_per_s: tuple[float | None, ...]
    nvlink: bool = False  # the GPUs' NVLinks carry it, not the NICs


class SharedWire(NamedTuple):
    """A wire that many hosts share, in one direction: a trunk between two clusters, or the uplink of one or the hub."""

    sender: str
    receiver: str
    kind: Literal["trunk", "uplink", "hub"]


@dataclass(frozen=True)
class HostRates:
    """Bytes/s of one host's NICs to its own cluster, with the transport, and to other clusters; None if not known.

    `*_port_bytes_per_s`: of the NICs themselves, as in `NetworkRoute`. `has_one_nic`: both use the same NICs.
    """

    net_name: NetName | None = None
    fabric_bytes_per_s: float | None = None
    shared_bytes_per_s: float | None = None
    fabric_port_bytes_per_s: float | None = None
    shared_port_bytes_per_s: float | None = None
    has_one_nic: bool = False


NO_RATES = HostRates()


class Networks:
    """The networks of an inventory, indexed by host."""

    def __init__(self, inventory: Inventory, job: Job) -> None:
        inventory = as_counted(inventory, job.wire.cautious)
        self._on_cpu = job.device == "cpu"
        self._cluster_of = {host: cluster for cluster in inventory.clusters for host in cluster.hosts}
        mtus = {(host.name, netdev.name): netdev.mtu for host in inventory.hosts for netdev in host.netdevs}
        calibration = job.compute.calibration
        self._part = part = calibration.network_efficiency if calibration is not None else 1.0

        def priced(ports: Iterable[NetworkPort]) -> dict[str, NetworkPort]:
            return {port.host: _as_priced(port, mtus.get((port.host, port.netdev or "")), part) for port in ports}

        self._fabric_ports = priced(port for cluster in inventory.clusters for port in cluster.fabric.ports)
        self._nvlink = {} if self._on_cpu else nvlink_rates(inventory)
        self.without_imex = hosts_without_imex(inventory)
        self._shared = shared_network(inventory)
        self._shared_ports = priced(self._shared.ports)
        read = connections_in_tunnel if inventory.encrypts else read_connections
        self._connections = read(inventory, partial(_payload_rate, inventory, mtus), part)
        if inventory.encrypts and inventory.security.tunnel_hub is not None:
            hub = self._shared_ports.get(inventory.security.tunnel_hub)
            self._connections = through_hub(inventory, self._connections, hub.bandwidth_bytes_per_s if hub else None)

    def shared_port(self, host: str) -> NetworkPort:
        """Return the port of `host` on the network that all hosts share.

        Raises:
            HolmesError: The host has none.
        """
        return _known_port(self._shared_ports.get(host), self._shared.name, host)

    def cluster(self, host: str) -> Cluster:
        """Return the cluster of `host`."""
        return self._cluster_of[host]

    def fabric_port(self, host: str) -> NetworkPort | None:
        """Return the port of `host` on its cluster's fabric; None if it has none."""
        return self._fabric_ports.get(host)

    def uses_rdma(self, host: str) -> bool:
        """Return True if NCCL reaches the host's own cluster by RDMA at a known rate."""
        port = self._fabric_ports.get(host)
        known = port is not None and port.hcas and port.rdma_bandwidth_bytes_per_s
        return bool(known) and not self._on_cpu and self._cluster_of[host].fabric.kind in RDMA_KINDS

    def nvlink_bytes_per_s(self, host: str) -> float | None:
        """Return the host's bytes/s over NVLink to all hosts of its cluster; None if NVLink does not join them."""
        return self._nvlink.get(host)

    def _net_name(self, host: str) -> NetName:
        """Return NCCL's name for the transport by which the host reaches its own cluster."""
        return (self._cluster_of[host].fabric.net_name or "IB") if self.uses_rdma(host) else "Socket"

    def connection(self, one: str, other: str) -> MeasuredLink:
        """Return the measurement between two clusters, or inside one if both names are equal."""
        return self._connections.get(frozenset((one, other)), NOT_MEASURED)

    def shared_wires(self, sender: str, receiver: str) -> Mapping[SharedWire, float]:
        """Return the wires that all traffic from one cluster to another shares, in bytes/s: trunk, uplinks and hub."""
        if sender == receiver:
            return {}
        connection = self.connection(sender, receiver)
        rates = {
            SharedWire(sender, receiver, "trunk"): connection.trunk_bytes_per_s,
            SharedWire(sender, "", "uplink"): connection.uplinks.get(sender),
            SharedWire("", receiver, "uplink"): connection.uplinks.get(receiver),
            SharedWire("", "", "hub"): connection.hub_bytes_per_s,
        }
        return {wire: rate for wire, rate in rates.items() if rate is not None}

    @cached_property
    def uplinks(self) -> Mapping[str, float]:
        """The uplinks in bytes/s, by cluster; empty for a single cluster."""
        return {name: rate for each in self._connections.values() for name, rate in each.uplinks.items()}

    def latency_s(self, clusters: Collection[str]) -> float:
        """Return the longest latency between hosts of `clusters`; 0 if none was measured."""
        return max((self.connection(*pair).latency_s for pair in _pairs(clusters)), default=0.0)

    def most_streams(self, clusters: Collection[str]) -> int:
        """Return the most parallel connections that the measured rate between two of `clusters` takes."""
        return max((self.connection(a, b).streams for a, b in _pairs(clusters) if a != b), default=1)

    def line_rate(self, priced_bytes_per_s: float, rdma: bool = False) -> float:
        """Return the rate that an inventory states for a port that is priced at `priced_bytes_per_s`."""
        return priced_bytes_per_s / self._part / (1.0 if rdma else tcp_payload_share(None))

    def rates(self, host: str) -> HostRates:
        """Return the rates of the host's NICs, to other clusters the best one; None also if it has no port."""
        shared_port = self._shared_ports.get(host)
        port_bytes_per_s = shared_port.bandwidth_bytes_per_s if shared_port is not None else None
        shared_bytes_per_s = self._best_bytes_per_s(host, port_bytes_per_s)
        shared_nic_bytes_per_s = _faster(port_bytes_per_s, shared_bytes_per_s)

        def rates(net_name: NetName | None, inside: float | None, nic: float | None, has_one_nic: bool) -> HostRates:
            return HostRates(net_name, inside, shared_bytes_per_s, nic, shared_nic_bytes_per_s, has_one_nic)

        if host in self._nvlink:
            return rates(self._net_name(host), self._nvlink[host], self._nvlink[host], False)
        fabric = self._fabric_ports.get(host)
        if not self._on_cpu and self.uses_rdma(host) and fabric is not None:
            rdma = self._rdma_bytes_per_s(fabric)
            one = shared_port is not None and fabric.netdev == shared_port.netdev
            return rates(self._net_name(host), rdma, rdma, one)
        port = fabric if self._on_cpu else shared_port
        inside = self._inside_bytes_per_s(host, port)
        nic = _faster(port.bandwidth_bytes_per_s if port is not None else None, inside)
        one = port is not None and shared_port is not None and port.netdev == shared_port.netdev
        return rates(None if self._on_cpu else "Socket", inside, nic, one)

    def num_ports(self, host: str) -> int:
        """Return the number of the host's NICs on the network inside its cluster."""
        fabric = self._fabric_ports.get(host)
        return len(fabric.hcas) if fabric is not None and self.uses_rdma(host) else 1

    def as_measured(self, port: NetworkPort, network: str) -> float | None:
        """Return the rate of a port as measured, on the shared network to the best connected other cluster."""
        own = self._cluster_of[port.host].name if port.host in self._cluster_of else None
        if own is None:
            return port.bandwidth_bytes_per_s
        if network != self._shared.name:
            return self.connection(own, own).host_bytes_per_s(port.host, port.bandwidth_bytes_per_s)
        return self._best_bytes_per_s(port.host, port.bandwidth_bytes_per_s)

    def _best_bytes_per_s(self, host: str, port_bytes_per_s: float | None) -> float | None:
        """Return the socket rate of such a port to the best connected other cluster, or the port's own rate."""
        rates = self._towards(host, port_bytes_per_s, self._names)
        return max((rate for rate in rates if rate is not None), default=port_bytes_per_s)

    def _towards(self, host: str, port_bytes_per_s: float | None, clusters: Iterable[str]) -> list[float | None]:
        """Return the socket rates of `host`, with such a port, to each of `clusters` except its own."""
        own = self._cluster_of[host].name
        others = [self.connection(own, other) for other in clusters if other != own]
        return [measured.host_bytes_per_s(host, port_bytes_per_s) for measured in others]

    def _inside_bytes_per_s(self, host: str, port: NetworkPort | None) -> float | None:
        """Return the socket rate of the host inside its cluster by `port`. Only the fabric's netdev is measured."""
        if port is None:
            return None
        own, fabric = self._cluster_of[host].name, self._fabric_ports.get(host)
        measured = fabric is not None and fabric.netdev == port.netdev
        inside = self.connection(own, own) if measured else NOT_MEASURED
        return inside.host_bytes_per_s(host, port.bandwidth_bytes_per_s)

    def _rdma_bytes_per_s(self, port: NetworkPort) -> float | None:
        own, rate = self._cluster_of[port.host].name, port.rdma_bandwidth_bytes_per_s
        return None if rate is None else rate * self.connection(own, own).rdma_share

    @cached_property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(cluster.name for cluster in self._cluster_of.values()))

    def route(self, hosts: Sequence[str]) -> NetworkRoute:
        """Return the network that `hosts` use among themselves: their cluster's fabric, else the shared network.

        On CUDA, NCCL takes one list of socket interfaces for the whole process: the shared ones. Inside a cluster, it
        uses the fabric through RDMA, or if the fabric's netdevs are the shared ones. In a cluster that is one NVLink
        domain, it prefers NVLink to any network, so NVLink's rate counts.

        Raises:
            HolmesError: A host is not on that network.
        """
        path = self._route_of_nics(hosts)
        names = {cluster.name if (cluster := self._cluster_of.get(host)) else None for host in hosts}
        if len(names) > 1 or not all(host in self._nvlink for host in hosts):
            return path
        rates = tuple(self._nvlink[host] for host in hosts)
        return replace(path, bandwidths=rates, ports_bytes_per_s=rates, nvlink=True)

    def _route_of_nics(self, hosts: Sequence[str]) -> NetworkRoute:
        cluster = self._cluster_of.get(hosts[0])
        inside = cluster is not None and all(self._cluster_of.get(host) is cluster for host in hosts)
        if inside and cluster is not None and self._on_cpu:
            ports = [_known_port(self._fabric_ports.get(host), cluster.fabric.name, host) for host in hosts]
            return self._socket_route(cluster.name, ports, None)
        if inside and cluster is not None and all(self.uses_rdma(host) for host in hosts):
            return self._rdma_route(cluster, hosts)
        ports = [self.shared_port(host) for host in hosts]
        same = inside and all(
            (fabric := self._fabric_ports.get(port.host)) is not None and fabric.netdev == port.netdev for port in ports
        )
        name = cluster.name if same and cluster is not None else SHARED
        return self._socket_route(name, ports, None if self._on_cpu else "Socket")

    def shared_route(self, host: str) -> NetworkRoute:
        """Return the network that all hosts share, as `host` uses it."""
        port = self.shared_port(host)
        net_name: NetName | None = None if self._on_cpu else "Socket"
        rates = self.rates(host)
        nic = (rates.shared_port_bytes_per_s,)
        return NetworkRoute(SHARED, net_name, (str(port.netdev),), (rates.shared_bytes_per_s,), nic)

    def _socket_route(self, name: str, ports: Sequence[NetworkPort], net_name: NetName | None) -> NetworkRoute:
        """Return the socket route between the hosts of `ports`, with rates to the worst connected other cluster."""
        clusters = list(dict.fromkeys(self._cluster_of[port.host].name for port in ports))
        bandwidths = tuple(self._sockets_bytes_per_s(port, clusters) for port in ports)
        nics = tuple(_faster(port.bandwidth_bytes_per_s, rate) for port, rate in zip(ports, bandwidths, strict=True))
        return NetworkRoute(name, net_name, tuple(str(port.netdev) for port in ports), bandwidths, nics)

    def _sockets_bytes_per_s(self, port: NetworkPort, clusters: Sequence[str]) -> float | None:
        if len(clusters) == 1:
            return self._inside_bytes_per_s(port.host, port)
        rates = self._towards(port.host, port.bandwidth_bytes_per_s, clusters)
        known = [rate for rate in rates if rate is not None]
        return min(known) if len(known) == len(rates) else None

    def _rdma_route(self, cluster: Cluster, hosts: Sequence[str]) -> NetworkRoute:
        """Return the route by RDMA. A port without a netdev (no IPoIB) names the shared one, for NCCL's bootstrap."""
        ports = [self._fabric_ports[host] for host in hosts]
        interfaces = tuple(port.netdev or str(self.shared_port(port.host).netdev) for port in ports)
        rates = tuple(self._rdma_bytes_per_s(port) for port in ports)
        return NetworkRoute(cluster.name, self._net_name(hosts[0]), interfaces, rates, rates)


def _faster(port_bytes_per_s: float | None, measured_bytes_per_s: float | None) -> float | None:
    """Return the larger rate of those that are known."""
    return max((rate for rate in (port_bytes_per_s, measured_bytes_per_s) if rate is not None), default=None)


def _pairs(clusters: Collection[str]) -> Iterator[tuple[str, str]]:
    """Return every two of `clusters`, and each with itself."""
    return combinations_with_replacement(sorted(set(clusters)), 2)


def shared_network(inventory: Inventory) -> Network:
    """Return the network that all hosts share, or the tunnel in it. A single cluster without one has its fabric.

    Raises:
        HolmesError: Several clusters share none.
    """
    if inventory.shared is not None:
        return tunnel_network(inventory, inventory.shared) if inventory.encrypts else inventory.shared
    if len(inventory.clusters) == 1:
        return inventory.clusters[0].fabric
    names = ", ".join(cluster.name for cluster in inventory.clusters)
    raise HolmesError(
        f"NET-NO-SHARED-SUBNET: clusters {names} have no network in common, so nothing can pass between them",
        "give every host an address on one IPv4 network, or plan on one cluster: `holmes probe` with its hosts alone",
        ANSWER_IS_NO,
    )


def require_bandwidth(path: NetworkRoute, hosts: Sequence[str]) -> tuple[float, ...]:
    """Return the bandwidths of `path` in bytes/s.

    Raises:
        HolmesError: The rate of a host's interface is not known.
    """
    for host, interface, bandwidth in zip(hosts, path.interfaces, path.bandwidths, strict=True):
        if not bandwidth:
            seen = "not known" if bandwidth is None else "0"
            raise HolmesError(
                f"host {host}: the bandwidth of {interface} on network {path.network} is {seen}",
                f"bring {interface} up if it is down there; if it is up, write its rate into hosts.yaml, for example "
                f"`speeds_gbps: {{{interface}: 10}}`; then probe again",
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


def _as_priced(port: NetworkPort, mtu: int | None, part: float) -> NetworkPort:
    """Return the port at payload rates: without TCP's framing, times the part that a calibrating run got."""
    parts = {"bandwidth_bytes_per_s": part * tcp_payload_share(mtu), "rdma_bandwidth_bytes_per_s": part}
    known = {name: rate * parts[name] for name in parts if (rate := getattr(port, name)) is not None}
    return port.model_copy(update=known)


def _payload_rate(
    inventory: Inventory, mtus: Mapping[tuple[str, str], int | None], link: Link, end: int
) -> float | None:
    """Return the payload bytes/s of the port at one end of `link`; None if not known."""
    host, device = next((host for host in inventory.hosts if host.name == link.hosts[end]), None), link.devices[end]
    if host is None:
        return None
    if link.method == "ib_write_bw":
        gbps = next((nic.rate_gbps for nic in host.nics if nic.hca == device), None)
        return bytes_per_s_from_gbps(gbps) if gbps else None
    speed = next((netdev.speed_bytes_per_s for netdev in host.netdevs if netdev.name == device), None)
    return speed * tcp_payload_share(mtus.get((host.name, device))) if speed else None


def nvlink_rates(inventory: Inventory) -> Mapping[str, float]:
    """Return the one-way bytes/s of every host whose cluster is in one NVLink domain with IMEX running on all hosts.

    It is the rate of one GPU, and thus the least that a ring through the host gets. In the plan, groups that leave a
    host through several GPUs share it; in the run they have more.
    """
    hosts = {host.name: host for host in inventory.hosts}
    running = [domain for domain in inventory.nvlink_domains if all(hosts[n].imex == "active" for n in domain.hosts)]
    rates: dict[str, float] = {}
    for cluster in inventory.clusters:
        if not any(set(cluster.hosts) <= set(domain.hosts) for domain in running):
            continue
        known = {name: rate for name in cluster.hosts if (rate := nvlink_bytes_per_s(hosts[name])) is not None}
        rates |= known if len(known) == len(cluster.hosts) else {}
    return rates


def hosts_without_imex(inventory: Inventory) -> frozenset[str]:
    """Return the hosts of NVLink domains with IMEX known not to run somewhere: NCCL fails there, without a fallback."""
    imex = {host.name: host.imex for host in inventory.hosts}
    return frozenset(
        name
        for domain in inventory.nvlink_domains
        if any(imex[member] not in (None, "active") for member in domain.hosts)
        for name in domain.hosts
    )
