"""Changes of an inventory, and the resulting inventory. Pure; nothing is probed or written.

To make a network faster, the slower ports of its hosts are raised to the rate; to make it slower, the faster ones are
lowered, unless a measured bandwidth becomes the new rate. A rate between two clusters counts as measured if others were
measured. A measured latency stays, even if a host of that measurement is removed, and so does a limit from encryption.
As text, a change has the form that `--what-if` takes, with its rate rounded to six digits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from holmes_core.errors import HolmesError
from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Cluster, Host, Inventory, Network, NetworkPort
from holmes_core.records.link import Link, Spread, Trunk
from holmes_core.units import MIB, bytes_per_s_from_gbps, format_names
from holmes_runtime.config.gpu_peaks import product_of
from planner.cost.collectives import tcp_payload_share
from planner.cost.gpu_speeds import MEMORY_MIB
from planner.cost.slot import named_board, usual_nvlinks
from planner.islands.uniform_links import assumed_link
from planner.problem.connections import limited_by_encryption, slowest_between

FORMS = (
    "link:CLUSTER-CLUSTER=10Gb/s",
    "trunk:CLUSTER-CLUSTER=10Gb/s",
    "trunk:CLUSTER=10Gb/s",
    "fabric:CLUSTER=400Gb/s",
    "nic:HOST/NETDEV=25Gb/s",
    "+host:NAME=like:HOST",
    "-host:NAME",
    "gpu:CLUSTER=H100",
    "tp=4",
)


@dataclass(frozen=True)
class LinkRate:
    """The rate per host between two clusters on the network that all clusters share."""

    clusters: tuple[str, str]
    bandwidth_bytes_per_s: float

    def __str__(self) -> str:
        return f"link:{'-'.join(self.clusters)}={_rate(self.bandwidth_bytes_per_s)}"

    def applied_to(self, inventory: Inventory) -> Inventory:
        """Return the inventory with that rate."""
        one, other = (_known_cluster(inventory, self, name) for name in self.clusters)
        if inventory.shared is None:
            raise refused(self, "the clusters have no network in common, so there is no rate to change")
        rate, between = self.bandwidth_bytes_per_s, [link for link in inventory.links if link.kind == "between"]
        links = _links_at_rate(inventory, rate, lambda link: set(link.clusters) == set(self.clusters))
        if between:  # pairs without a test keep the rate at which they count, except for this one
            late_s = max((link.latency_s.median for link in between if link.latency_s is not None), default=None)
            known = {frozenset(link.clusters) for link in between}
            for pair in combinations(inventory.clusters, 2):
                changed = {cluster.name for cluster in pair} == {one.name, other.name}
                counted = rate * tcp_payload_share(None) if changed else slowest_between(inventory)
                if counted is not None and frozenset(cluster.name for cluster in pair) not in known:
                    links = (*links, assumed_link(inventory, pair, counted, late_s))
        shared = _at_rate(
            inventory.shared, (*one.hosts, *other.hosts), "bandwidth_bytes_per_s", rate, may_lower=not between
        )
        return inventory.model_copy(update={"links": links, "shared": shared})


@dataclass(frozen=True)
class TrunkRate:
    """The rate each way of all traffic between two clusters together, or between one and all others."""

    clusters: tuple[str, ...]
    bandwidth_bytes_per_s: float

    def __str__(self) -> str:
        return f"trunk:{'-'.join(self.clusters)}={_rate(self.bandwidth_bytes_per_s)}"

    def applied_to(self, inventory: Inventory) -> Inventory:
        """Return the inventory with that trunk."""
        for name in self.clusters:
            _known_cluster(inventory, self, name)
        others = tuple(trunk for trunk in inventory.trunks if set(trunk.clusters) != set(self.clusters))
        rate = self.bandwidth_bytes_per_s
        trunk = Trunk(clusters=self.clusters, bandwidth_bytes_per_s=rate, source="hosts.yaml", pairs=0)
        return inventory.model_copy(update={"trunks": (*others, trunk)})


@dataclass(frozen=True)
class FabricRate:
    """The rate per host between hosts of a cluster on the cluster's fabric.

    It is the rate of RDMA if the fabric has it. The netdev, which only sockets use, then stays as it is.
    """

    cluster: str
    bandwidth_bytes_per_s: float

    def __str__(self) -> str:
        return f"fabric:{self.cluster}={_rate(self.bandwidth_bytes_per_s)}"

    def applied_to(self, inventory: Inventory) -> Inventory:
        """Return the inventory with that rate."""
        cluster, rate = _known_cluster(inventory, self, self.cluster), self.bandwidth_bytes_per_s
        rdma = any(port.rdma_bandwidth_bytes_per_s is not None for port in cluster.fabric.ports)
        rate_of = "rdma_bandwidth_bytes_per_s" if rdma else "bandwidth_bytes_per_s"
        fabric = _at_rate(cluster.fabric, cluster.hosts, rate_of, rate)
        links = _links_at_rate(
            inventory,
            rate,
            lambda link: link.clusters == (self.cluster, self.cluster) and (link.method == "ib_write_bw") is rdma,
        )
        return _cluster_changed(inventory, cluster.model_copy(update={"fabric": fabric}), {"links": links})


@dataclass(frozen=True)
class NicRate:
    """The rate of one interface of a host: a netdev, or an RDMA device such as mlx5_0."""

    host: str
    interface: str
    bandwidth_bytes_per_s: float

    def __str__(self) -> str:
        return f"nic:{self.host}/{self.interface}={_rate(self.bandwidth_bytes_per_s)}"

    def applied_to(self, inventory: Inventory) -> Inventory:
        """Return the inventory with that interface changed, and the host's ports on the interface's networks."""
        host, cluster = _known_host(inventory, self, self.host)
        changed = self._changed_host(host)
        rails = {nic.hca: bytes_per_s_from_gbps(nic.rate_gbps or 0.0) for nic in changed.nics}

        def port(seen: NetworkPort) -> NetworkPort:
            rate = self.bandwidth_bytes_per_s
            update: dict[str, float] = {"bandwidth_bytes_per_s": rate} if seen.netdev == self.interface else {}
            if seen.hcas and set(seen.hcas) <= set(rails) and changed.nics != host.nics:
                update["rdma_bandwidth_bytes_per_s"] = sum(rails[hca] for hca in seen.hcas)
            return seen.model_copy(update=update)

        names = {self.interface, *(nic.hca for nic in host.nics if self._is(nic))}
        used = {(self.host, name) for name in names}
        update = {
            "hosts": tuple(changed if seen is host else seen for seen in inventory.hosts),
            "shared": inventory.shared and _each_port(inventory.shared, self.host, port),
            "links": _links_at_rate(
                inventory,
                self.bandwidth_bytes_per_s,
                lambda link: bool(used & set(zip(link.hosts, link.devices, strict=True))),
            ),
        }
        faster = cluster.model_copy(update={"fabric": _each_port(cluster.fabric, self.host, port)})
        return _cluster_changed(inventory, faster, update)

    def _changed_host(self, host: Host) -> Host:
        known = dict.fromkeys([*(netdev.name for netdev in host.netdevs), *(nic.device for nic in host.nics)])
        if self.interface not in known and not any(self._is(nic) for nic in host.nics):
            raise refused(self, f"host {self.host} has no interface {self.interface!r} ({', '.join(known)})")
        gbps = {"rate_gbps": self.bandwidth_bytes_per_s * 8 / 1e9}
        speed = {"speed_bytes_per_s": self.bandwidth_bytes_per_s}
        nics = tuple(nic.model_copy(update=gbps) if self._is(nic) else nic for nic in host.nics)
        netdevs = tuple(
            netdev.model_copy(update=speed) if netdev.name == self.interface else netdev for netdev in host.netdevs
        )
        return host.model_copy(update={"nics": nics, "netdevs": netdevs})

    def _is(self, nic: Nic) -> bool:
        return self.interface in (nic.device, nic.netdev)


@dataclass(frozen=True)
class MoreHost:
    """One more host like another, in its cluster, with the same addresses. Only plans use it."""

    name: str
    like: str

    def __str__(self) -> str:
        return f"+host:{self.name}=like:{self.like}"

    def applied_to(self, inventory: Inventory) -> Inventory:
        """Return the inventory with the new host right after the one it copies."""
        model, cluster = _known_host(inventory, self, self.like)
        if any(host.name == self.name for host in inventory.hosts):
            raise refused(self, f"host {self.name!r} is already in the inventory")

        def joined(network: Network) -> Network:
            port = network.port_of(self.like)
            added = (port.model_copy(update={"host": self.name}),) if port else ()
            return network.model_copy(update={"ports": (*network.ports, *added)})

        at = inventory.hosts.index(model) + 1
        added = model.model_copy(update={"name": self.name})
        larger = cluster.model_copy(update={"hosts": (*cluster.hosts, self.name), "fabric": joined(cluster.fabric)})
        shared = inventory.shared and joined(inventory.shared)
        hosts = (*inventory.hosts[:at], added, *inventory.hosts[at:])
        return _cluster_changed(inventory, larger, {"hosts": hosts, "shared": shared})


@dataclass(frozen=True)
class WithoutHost:
    """The removal of a host."""

    name: str

    def __str__(self) -> str:
        return f"-host:{self.name}"

    def applied_to(self, inventory: Inventory) -> Inventory:
        """Return the inventory without that host, and without its cluster if it has no other."""
        _, cluster = _known_host(inventory, self, self.name)

        def left(network: Network) -> Network:
            return network.model_copy(update={"ports": tuple(port for port in network.ports if port.host != self.name)})

        names = tuple(host for host in cluster.hosts if host != self.name)
        smaller = cluster.model_copy(update={"hosts": names, "fabric": left(cluster.fabric)})
        update = {
            "hosts": tuple(host for host in inventory.hosts if host.name != self.name),
            "shared": inventory.shared and left(inventory.shared),
        }
        changed = _cluster_changed(inventory, smaller, update)
        return changed.model_copy(update={"clusters": tuple(cluster for cluster in changed.clusters if cluster.hosts)})


@dataclass(frozen=True)
class GpuType:
    """Another product in place of all GPUs of a cluster: equally many, with the product's own links between them."""

    cluster: str
    gpu: str

    def __str__(self) -> str:
        return f"gpu:{self.cluster}={self.gpu}"

    def applied_to(self, inventory: Inventory) -> Inventory:
        """Return the inventory with such GPUs."""
        names = _known_cluster(inventory, self, self.cluster).hosts
        product = product_of(self.gpu)
        if product is None:
            raise refused(self, f"the speed of {self.gpu!r} is not known (known: {', '.join(MEMORY_MIB)})")
        memory = {"name": named_board(product), "memory_bytes": MEMORY_MIB[product] * MIB}
        links = dict.fromkeys(("nvlinks_up", "nvlinks_total"), usual_nvlinks(product))
        new = {**memory, **links, "nvlink_cluster": None, "nvlink_clique": None}
        hosts = [
            host.model_copy(update={"gpus": tuple(gpu.model_copy(update=new) for gpu in host.gpus)})
            if host.name in names
            else host
            for host in inventory.hosts
        ]
        domains = [domain for domain in inventory.nvlink_domains if not set(names) & set(domain.hosts)]
        return inventory.model_copy(update={"hosts": tuple(hosts), "nvlink_domains": tuple(domains)})


Change = GpuType | LinkRate | TrunkRate | FabricRate | NicRate | MoreHost | WithoutHost


def apply_changes(inventory: Inventory, changes: Iterable[Change]) -> Inventory:
    """Return `inventory` with the changes, one after another.

    Raises:
        HolmesError: A host, cluster, interface or GPU is not known, or a name is taken (wrong usage).
    """
    for change in changes:
        inventory = change.applied_to(inventory)
    return inventory


def refused(change: Change | str, why: str) -> HolmesError:
    """Return the error for a change, or the text of one, that cannot be made."""
    return HolmesError(f"--what-if {change}: {why}", "a change is one of " + ", ".join(f"`{form}`" for form in FORMS))


def _rate(bandwidth_bytes_per_s: float) -> str:
    gbps = bandwidth_bytes_per_s * 8 / 1e9
    return f"{gbps:.6g}Gb/s" if gbps >= 1 else f"{gbps * 1e3:.6g}Mb/s"


def _known_cluster(inventory: Inventory, change: Change, name: str) -> Cluster:
    for cluster in inventory.clusters:
        if cluster.name == name:
            return cluster
    known = ", ".join(cluster.name for cluster in inventory.clusters)
    raise refused(change, f"no cluster {name!r} in the inventory ({known})")


def _known_host(inventory: Inventory, change: Change, name: str) -> tuple[Host, Cluster]:
    """Return the host of that name and its cluster; only a reachable host has one."""
    for cluster in inventory.clusters:
        if name in cluster.hosts:
            return inventory.host(name), cluster
    known = [host for cluster in inventory.clusters for host in cluster.hosts]
    raise refused(change, f"no reachable host {name!r} in the inventory ({format_names(known, 8)})")


def _links_at_rate(
    inventory: Inventory, bandwidth_bytes_per_s: float, changes: Callable[[Link], bool]
) -> tuple[Link, ...]:
    """Return the inventory's links, with those that `changes` selects as if a test had measured the new rate's payload.

    A tunnel's rate stays if encryption limits it. If the old rate limited it, it is dropped: it does not show the new.
    """
    by_encryption = {way[0].way for way in limited_by_encryption(inventory)}

    def changed(link: Link) -> Link:
        is_rdma = link.method == "ib_write_bw"
        rate = bandwidth_bytes_per_s * (1.0 if is_rdma else tcp_payload_share(None))
        method = link.method if is_rdma else "stated"
        return link.model_copy(update={"bandwidth_bytes_per_s": Spread(min=rate, median=rate), "method": method})

    links = (link for link in inventory.links if not link.tunnel or not changes(link) or link.way in by_encryption)
    return tuple(changed(link) if changes(link) and not link.tunnel else link for link in links)


def _at_rate(
    network: Network, hosts: Collection[str], rate_of: str, bandwidth_bytes_per_s: float, may_lower: bool = True
) -> Network:
    """Return the network with that rate at the slowest port of `hosts`; `rate_of` names the field to change.

    Unless it `may_lower`, no port becomes slower.
    """
    rates = [getattr(port, rate_of) for port in network.ports if port.host in hosts]
    faster = None in rates or bandwidth_bytes_per_s > min(rates) or not may_lower

    def changed(port: NetworkPort) -> NetworkPort:
        old = getattr(port, rate_of) or bandwidth_bytes_per_s
        new = max(old, bandwidth_bytes_per_s) if faster else min(old, bandwidth_bytes_per_s)
        return port.model_copy(update={rate_of: new}) if port.host in hosts else port

    return network.model_copy(update={"ports": tuple(changed(port) for port in network.ports)})


def _each_port(network: Network, host: str, change: Callable[[NetworkPort], NetworkPort]) -> Network:
    ports = tuple(change(port) if port.host == host else port for port in network.ports)
    return network.model_copy(update={"ports": ports})


def _cluster_changed(inventory: Inventory, cluster: Cluster, update: Mapping[str, object]) -> Inventory:
    """Return `inventory` with `cluster` in place of the one of that name, and with `update`."""
    clusters = tuple(cluster if seen.name == cluster.name else seen for seen in inventory.clusters)
    return inventory.model_copy(update={"clusters": clusters, **update})
