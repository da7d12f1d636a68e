"""Which hosts share a fabric, and which network all of them share. Found from facts; hosts.yaml may pin labels.

InfiniBand hosts belong together when subnet prefix, subnet manager and IPoIB networks do not differ, RoCE hosts when
their RDMA netdevs share an IP network or are routed to each other, hosts with EFA when they have addresses in one
subnet, which its packets do not leave, hosts without RDMA when their fastest netdevs share a network. A host of any but
the first kind whose networks are not known is a cluster of its own, and a finding says so: sockets
between hosts of one fabric are slow, RDMA between hosts of two fails.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holmes_core.records.devices import Netdev, NetName, Nic
from holmes_core.records.inventory import Cluster, FabricKind, Finding, Host, Network, NetworkPort
from holmes_core.units import bytes_per_s_from_gbps
from prober.efa import efa_plugin, efa_rails

_SHORT: dict[FabricKind, str] = {
    "InfiniBand": "ib",
    "RoCE": "roce",
    "EFA": "efa",
    "Ethernet": "eth",
    "loopback": "local",
}
_BY_NETWORK = ("RoCE", "EFA", "Ethernet")  # kinds of which hosts must show that they are on one network
VIRTUAL_NAMES = ("docker", "br-", "veth", "virbr", "cni", "flannel")  # container and VM bridges and their ends


@dataclass(frozen=True)
class Fabric:
    """What one host shows of its fastest fabric. None or empty: not known, and contradicts nothing."""

    kind: FabricKind
    subnet_prefix: str | None
    sm_lid: int | None
    networks: frozenset[str]
    rails: tuple[Nic, ...]
    netdev: Netdev | None
    routed: frozenset[str] = frozenset()
    net_name: NetName | None = None  # where a plugin of NCCL brings it

    def contradicts(self, other: Fabric) -> bool:
        """A known fact speaks against the two being one fabric."""
        return (
            (self.kind, self.net_name) != (other.kind, other.net_name)
            or (None not in (self.subnet_prefix, other.subnet_prefix) and self.subnet_prefix != other.subnet_prefix)
            or (None not in (self.sm_lid, other.sm_lid) and self.sm_lid != other.sm_lid)
            or bool(self.networks and other.networks and not self._meets(other))
        )

    def is_one_with(self, other: Fabric) -> bool:
        """The two are one fabric: nothing speaks against it, and on Ethernet a network or routes speak for it.

        Every InfiniBand fabric looks the same by default, so there what is not known is taken to be alike.
        """
        if self.kind in _BY_NETWORK and not self._meets(other):
            return False
        return not self.contradicts(other)

    def _meets(self, other: Fabric) -> bool:
        """A network in common; or, for RoCE, routes over the rails in both directions (one subnet a rail or a host)."""
        both_ways = _leads_to(self.routed, other.networks) and _leads_to(other.routed, self.networks)
        return bool(self.networks & other.networks) or (self.kind == "RoCE" and both_ways)

    def joined_with(self, other: Fabric) -> Fabric:
        """The facts of both, which must not contradict each other."""
        return replace(
            self,
            subnet_prefix=self.subnet_prefix or other.subnet_prefix,
            sm_lid=self.sm_lid if self.sm_lid is not None else other.sm_lid,
            networks=self.networks | other.networks,
            routed=self.routed | other.routed,
        )


def fabric_of(host: Host) -> Fabric:
    """The fabric of the host's rails: usable RDMA ports of the kind with most bandwidth, at that kind's top rate.

    Slower ports of the kind (a front-end card, a storage bond) are no rails. A host without usable RDMA has EFA, where
    NCCL can use it, or the Ethernet of its fastest netdev; a local one has the loopback.
    """
    if host.access.transport == "local":
        loopback = next((netdev for netdev in host.netdevs if netdev.name == "lo"), None)
        return Fabric("loopback", None, None, _networks([loopback] if loopback else []), (), loopback)
    usable = [nic for nic in host.nics if nic.usable_by_nccl_ib and nic.kind in ("InfiniBand", "RoCE")]
    if not usable:
        carrying = [netdev for netdev in host.netdevs if _carries_traffic(netdev)]
        netdev = _fastest(carrying)
        if (plugin := efa_plugin(host)) is not None and (adapters := efa_rails(host)):
            return Fabric("EFA", None, None, _networks(carrying), adapters, netdev, net_name=plugin.net_name)
        return Fabric("Ethernet", None, None, _networks([netdev] if netdev else []), (), netdev)
    totals = {kind: sum(_rate(nic) for nic in usable if nic.kind == kind) for kind in {nic.kind for nic in usable}}
    kind = max(totals, key=lambda kind: (totals[kind], sum(nic.kind == kind for nic in usable), kind))
    top_rate = max(_rate(nic) for nic in usable if nic.kind == kind)
    rails = tuple(nic for nic in usable if nic.kind == kind and _rate(nic) == top_rate)
    netdevs = [netdev for nic in rails for netdev in host.netdevs if netdev.name == nic.netdev]
    return Fabric(
        kind="InfiniBand" if kind == "InfiniBand" else "RoCE",
        subnet_prefix=next((nic.subnet_prefix for nic in rails if nic.subnet_prefix), None),
        sm_lid=next((nic.sm_lid for nic in rails if nic.sm_lid), None) if kind == "InfiniBand" else None,
        networks=_networks(netdevs),
        rails=rails,
        netdev=next((netdev for netdev in netdevs if netdev.addresses), netdevs[0] if netdevs else None),
        routed=frozenset(route.prefix for route in host.routes if route.netdev in {netdev.name for netdev in netdevs}),
    )


def _leads_to(prefixes: Iterable[str], networks: Iterable[str]) -> bool:
    """Whether a route to one of `prefixes` covers one of `networks`."""
    targets = [ipaddress.IPv4Network(network) for network in networks]
    return any(target.subnet_of(ipaddress.IPv4Network(prefix)) for prefix in prefixes for target in targets)


def _rate(nic: Nic) -> float:
    """Gbit/s for comparing; a rate that is not known counts least."""
    return nic.rate_gbps or 0.0


def is_rail_class(host: Host, nic: Nic) -> bool:
    """Whether a port that is not Active should be a rail: it is of the rails' kind and card model.

    Where no port is a rail, every port should be; where the models are not known, none is taken to be.
    """
    rails = fabric_of(host).rails
    same_model = nic.hca_type is not None and nic.hca_type in {rail.hca_type for rail in rails}
    return not rails or (nic.kind == rails[0].kind and same_model)


@dataclass
class _Group:
    """Hosts taken to share a fabric, while others are still being looked at. `label` is what hosts.yaml calls it."""

    label: str | None
    fabric: Fabric
    members: list[tuple[Host, Fabric]]

    def takes(self, label: str | None, fabric: Fabric) -> bool:
        """Whether a host of that fabric belongs to it: by its label, or if it has none by the facts."""
        return label == self.label if label is not None else self.fabric.is_one_with(fabric)


def find_clusters(hosts: Sequence[Host], pinned: Mapping[str, str]) -> tuple[tuple[Cluster, ...], tuple[Finding, ...]]:
    """Clusters of the reachable hosts, in order of their first host. `pinned`: host name to label."""
    groups: list[_Group] = []
    findings: list[Finding] = []
    for host in (host for host in hosts if host.reachable):
        fabric, label = fabric_of(host), pinned.get(host.name)
        group = next((group for group in groups if group.takes(label, fabric)), None)
        if group is None:
            groups.append(_Group(label, fabric, [(host, fabric)]))
            continue
        group.members.append((host, fabric))
        if group.fabric.contradicts(fabric):
            findings.append(_pinned_against_facts(host.name, label or "", group.fabric, fabric))
        else:
            group.fabric = group.fabric.joined_with(fabric)
    if len(groups) > 1:
        findings += [
            _not_known(group.members[0][0].name, group.fabric.kind)
            for group in groups
            if group.label is None and group.fabric.kind in _BY_NETWORK and not group.fabric.networks
        ]
    return tuple(_clusters(groups)), tuple(findings)


def _clusters(groups: Iterable[_Group]) -> Iterable[Cluster]:
    counts: Counter[str] = Counter()
    for group in groups:
        short, networks = _SHORT[group.fabric.kind], group.fabric.networks
        counts[short] += group.label is None
        name = group.label or f"{short}-{counts[short]}"
        ports = tuple(_fabric_port(host, fabric) for host, fabric in group.members)
        subnet = min(networks) if len(networks) == 1 else None
        yield Cluster(
            name=name,
            hosts=tuple(host.name for host, _ in group.members),
            fabric=Network(
                name=name, kind=group.fabric.kind, subnet=subnet, ports=ports, net_name=group.fabric.net_name
            ),
            pinned=group.label is not None,
        )


def find_shared_network(hosts: Sequence[Host]) -> Network | None:
    """The IPv4 network on which every reachable host has an address; the fastest if there are several.

    Without one: the networks of the default routes, taken as routed to each other. None if a host has no default route.
    """
    reachable = [host for host in hosts if host.reachable]
    local = any(host.access.transport == "local" for host in reachable)
    networks: dict[str, dict[str, NetworkPort]] = {}
    for host in reachable:
        for netdev in host.netdevs:
            if (netdev.name == "lo") if local else _carries_traffic(netdev):
                for network in _networks([netdev]):
                    networks.setdefault(network, {}).setdefault(host.name, _port(host.name, netdev, network))
    kind: FabricKind = "loopback" if local else "Ethernet"
    common = {
        subnet: tuple(ports.values())
        for subnet, ports in networks.items()
        if len(ports) == len(reachable) and (local or _all_differ(ports.values()))
    }
    if common:
        subnet = max(common, key=lambda subnet: (_slowest(common[subnet]), subnet))
        return Network(name="shared", kind=kind, subnet=subnet, ports=common[subnet])
    routed = [
        (host, netdev) for host in reachable for netdev in host.netdevs if netdev.name == host.default_route_netdev
    ]
    if reachable and len(routed) == len(reachable) and all(netdev.addresses for _, netdev in routed):
        ports = tuple(_port(host.name, netdev, None) for host, netdev in routed)
        return Network(name="shared", kind="Ethernet", subnet=None, ports=ports)
    return None


def _fabric_port(host: Host, fabric: Fabric) -> NetworkPort:
    port = _port(host.name, fabric.netdev, None)
    if not fabric.rails:
        return port
    plugin = efa_plugin(host) if fabric.net_name is not None else None
    total_gbps = sum(nic.rate_gbps or 0 for nic in fabric.rails)
    return port.model_copy(
        update={
            "hcas": tuple(nic.hca for nic in fabric.rails),
            "rdma_bandwidth_bytes_per_s": bytes_per_s_from_gbps(total_gbps),
            "net_plugin": plugin.path if plugin is not None else None,
        }
    )


def _port(host: str, netdev: Netdev | None, subnet: str | None) -> NetworkPort:
    addresses = netdev.addresses if netdev else ()
    inside = [address for address in addresses if subnet is None or _network(address) == subnet]
    return NetworkPort(
        host=host,
        netdev=netdev.name if netdev else None,
        address=inside[0].partition("/")[0] if inside else None,
        bandwidth_bytes_per_s=netdev.speed_bytes_per_s if netdev else None,
    )


def _carries_traffic(netdev: Netdev) -> bool:
    return bool(netdev.up) and bool(netdev.addresses) and not netdev.name.startswith((*VIRTUAL_NAMES, "lo"))


def _fastest(netdevs: Iterable[Netdev]) -> Netdev | None:
    return max(netdevs, key=lambda netdev: netdev.speed_bytes_per_s or 0, default=None)


def _slowest(ports: Iterable[NetworkPort]) -> float:
    return min(port.bandwidth_bytes_per_s or 0 for port in ports)


def _all_differ(ports: Collection[NetworkPort]) -> bool:
    """The same address on two hosts means two networks that merely look alike, such as container bridges."""
    return len({port.address for port in ports}) == len(ports)


def _networks(netdevs: Iterable[Netdev]) -> frozenset[str]:
    return frozenset(_network(address) for netdev in netdevs for address in netdev.addresses)


def _network(address: str) -> str:
    return str(ipaddress.ip_interface(address).network)


def _pinned_against_facts(host: str, label: str, cluster: Fabric, fabric: Fabric) -> Finding:
    return Finding(
        rule="CLUSTER-PIN-CONTRADICTS",
        severity="W",
        hosts=(host,),
        evidence=f"pinned to {label}: it shows {_shown(fabric)}, the cluster {_shown(cluster)}",
        effect="groups inside this cluster may have no common fabric",
        remedy="correct `cluster:` in hosts.yaml, or leave it out and let the probe find it",
    )


def _not_known(host: str, kind: FabricKind) -> Finding:
    return Finding(
        rule="CLUSTER-NOT-KNOWN",
        severity="W",
        hosts=(host,),
        evidence=f"no IPv4 network is known of its {kind} interfaces",
        effect="which hosts share its fabric cannot be told, so it is a cluster of its own",
        remedy="give the interfaces addresses, or pin `cluster:` in hosts.yaml",
    )


def _shown(fabric: Fabric) -> str:
    networks = ", ".join(sorted(fabric.networks)) or "no network"
    return f"{fabric.kind} on {networks}" + (f", SM lid {fabric.sm_lid}" if fabric.sm_lid else "")
