"""Rules on networks between clusters, front ends, and the IP networks of rails."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Sequence

from holmes_core.records.devices import Netdev
from holmes_core.records.inventory import Cluster, Finding, Host, Network
from holmes_core.units import format_rate
from prober.fabrics.collisions import addresses_given_twice
from prober.fabrics.fabric import VIRTUAL_NAMES, fabric_of
from prober.fabrics.own_bridges import is_cut_off, own_bridge_findings
from prober.fabrics.same_fabric import overlap
from prober.rails.choose_rails import rails_of
from prober.rails.port_networks import netdevs_of, parsed
from prober.rule_text import FIELD, RuleText
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, below, differing, named, together

NO_SHARED_NETWORK = RuleText(
    "NET-NO-SHARED-SUBNET",
    "F",
    "there are several clusters, no IPv4 network on which every host has an address, and not every host has a default "
    "route",
    "clusters cannot reach each other",
    "give every host an address on one Ethernet, or routes between the networks",
    "NVIDIA/nccl#878",
)
NAMES_DIFFER = RuleText(
    "NET-IFNAME-DIFFERS",
    "I",
    "the interface on the shared network has different names on different hosts",
    "one NCCL_SOCKET_IFNAME for all hosts would not work",
    "nothing with Holmes, which sets it for each host",
    "aws-samples/aws-do-eks#51",
)
SUBNET_CONFLICT = RuleText(
    "NET-SUBNET-CONFLICT",
    "F",
    "two clusters use one prefix for different wires, or a container bridge's prefix holds a peer's address",
    "packets go to the wrong wire",
    "renumber one of the networks; of Docker's bridges `default-address-pools` in /etc/docker/daemon.json",
    "Docker documentation, daemon configuration (default-address-pools); Linux, ip-route(8)",
)
CONFLICT_ASIDE = RuleText(
    "NET-SUBNET-CONFLICT",
    "I",
    "two clusters use one prefix for different wires, but also have a shared network",
    "none between these clusters, which use the shared network",
    "nothing; renumber one before you route between them",
    "Linux, ip-route(8); " + FIELD,
)
POINT_TO_POINT = 30  # prefix bits of an IPv4 network of only a host and its switch port
TEXTS = (NO_SHARED_NETWORK, NAMES_DIFFER, SUBNET_CONFLICT, CONFLICT_ASIDE)


def network_findings(hosts: Sequence[Host], clusters: Sequence[Cluster], shared: Network | None) -> list[Finding]:
    """Return findings about the networks that join the clusters."""
    reachable = [host for host in hosts if host.reachable]
    findings = []
    cut_off = any(is_cut_off(host) for host in reachable)
    # A host with an address has a route at least to its own network, so without one its routes are not known.
    known = all(
        any(netdev.addresses for netdev in host.netdevs) and (host.routes or host.default_route_netdev is not None)
        for host in reachable
    )
    if shared is None and len(clusters) > 1 and known and not cut_off:
        seen = "no IPv4 network on which every host has an address, and not every host has a default route"
        findings.append(NO_SHARED_NETWORK.finding([host.name for host in reachable], seen))
    findings += own_bridge_findings(reachable)
    names = sorted({str(port.netdev) for port in shared.ports}) if shared is not None else []
    if shared is not None and len(names) > 1:
        seen = f"the interface on {shared.subnet or 'the shared network'} is called {', '.join(names)}"
        findings.append(NAMES_DIFFER.finding([port.host for port in shared.ports], seen))
    return findings + _subnet_conflicts(clusters, shared) + _covered_by_containers(reachable, shared)


def _subnet_conflicts(clusters: Sequence[Cluster], shared: Network | None) -> list[Finding]:
    """Return a finding for two clusters that use one prefix for different wires: routing between them is undefined.

    It does no harm if a separate shared network carries the traffic between them.
    """
    findings = []
    for cluster, other in itertools.combinations(clusters, 2):
        subnet = cluster.fabric.subnet
        if subnet and subnet == other.fabric.subnet and cluster.fabric.kind not in ("EFA", "Ethernet", "loopback"):
            evidence = f"{cluster.name} and {other.name} both use {subnet}"
            aside = shared is not None and shared.subnet not in (None, subnet)
            conflict = CONFLICT_ASIDE if aside else SUBNET_CONFLICT
            findings.append(conflict.finding((*cluster.hosts, *other.hosts), evidence))
    return findings


def _covered_by_containers(hosts: Sequence[Host], shared: Network | None) -> list[Finding]:
    """Return a finding for each container bridge that takes the traffic to a peer, whose address is in its prefix."""
    findings = []
    peers = [(port.host, port.address) for port in shared.ports if port.address] if shared else []
    for host in hosts:
        for netdev in host.netdevs:
            for own in netdev.addresses if netdev.name.startswith(VIRTUAL_NAMES) else ():
                network = ipaddress.ip_interface(own).network
                hidden = [peer for peer, address in peers if ipaddress.ip_address(address) in network]
                if hidden:
                    evidence = f"{netdev.name} ({own}) covers the address of {', '.join(hidden)}"
                    findings.append(SUBNET_CONFLICT.finding((host.name,), evidence))
    return findings


def _front_end(host: Host) -> Netdev | None:
    """Return the netdev of the default route, unless it carries the job, which rules on rates check."""
    own = next((netdev for netdev in host.netdevs if netdev.name == host.default_route_netdev), None)
    return None if own is None or own == fabric_of(host).netdev else own


def _front_end_rate(host: Host) -> float | None:
    end = _front_end(host)
    return end.speed_bytes_per_s if end is not None and end.up else None


def _front_end_mtu(host: Host) -> int | None:
    end = _front_end(host)
    return end.mtu if end is not None else None


def _masks(peers: Sequence[Host]) -> PeerEvidence:
    """Yield networks of rails that contain one another and are not equal, which shows a wrong mask."""
    owners: dict[str, list[str]] = {}
    for host in peers:
        for network in fabric_of(host).networks:
            owners.setdefault(network, []).append(host.name)
    wide = [network for network in owners if not _is_point_to_point(network)]
    for network in sorted(wide):
        inside = [other for other in sorted(wide) if other != network and overlap(network, other)]
        narrower = [other for other in inside if parsed(other).prefixlen > parsed(network).prefixlen]
        if narrower:
            shown = "; ".join(f"{each} on {named(owners[each])}" for each in (network, *narrower))
            most = max(len(owners[each]) for each in (network, *narrower))
            few = [each for each in (network, *narrower) if 2 * len(owners[each]) <= most]
            odd = {name for each in few or (network, *narrower) for name in owners[each]}
            yield tuple(host.name for host in peers if host.name in odd), shown


def _is_point_to_point(network: str) -> bool:
    prefix = parsed(network)
    return prefix.max_prefixlen - prefix.prefixlen <= 32 - POINT_TO_POINT


def _ipoib_differs(peers: Sequence[Host]) -> PeerEvidence:
    """Yield InfiniBand hosts whose IPoIB networks do not meet, because different interfaces have the addresses."""
    of_hosts = {host.name: fabric_of(host).networks for host in peers if fabric_of(host).kind == "InfiniBand"}
    known = {name: networks for name, networks in of_hosts.items() if networks}
    first = next(iter(known.values()), frozenset())
    if any(not any(overlap(a, b) for a in first for b in networks) for networks in known.values()):
        shown = "; ".join(f"{', '.join(sorted(networks))} on {name}" for name, networks in known.items())
        yield tuple(known), f"IPoIB networks of one fabric: {shown}"


def _addresses_twice(peers: Sequence[Host]) -> PeerEvidence:
    for pair, address in addresses_given_twice({host.name: fabric_of(host) for host in peers}).items():
        yield pair, f"a rail of both has the address {address}"


def _interface_down(host: Host) -> Evidence:
    """Yield rails whose netdev is down. A netdev without an address is not meant to carry anything."""
    for rail in rails_of(host):
        for netdev in netdevs_of(host, rail):
            if netdev.up is False and netdev.addresses:
                yield f"{netdev.name} of {rail.hca} is down; it has {', '.join(netdev.addresses)}"


HOST_RULES = (
    Rule(
        "NET-INTERFACE-DOWN",
        "W",
        "the network interface of a rail has an address and is down, though its RDMA port may be active",
        "Gloo, and NCCL where it uses sockets, have no way inside the cluster, and nothing can be planned on it",
        "`ip link set NETDEV up`; then see what took it down: `journalctl -k`, NetworkManager",
        "Linux, ip-link(8)",
        _interface_down,
    ),
    Rule(
        "NET-DOCKER-CANDIDATE",
        "I",
        "container bridges or their ends have addresses",
        "a loose interface filter would match",
        "nothing with Holmes, which names interfaces exactly; by hand, `NCCL_SOCKET_IFNAME==NAME`",
        "NCCL, src/misc/socket.cc (only docker, lo and virbr are skipped)",
        lambda host: together(
            "{} have addresses", (n.name for n in host.netdevs if n.addresses and n.name.startswith(VIRTUAL_NAMES))
        ),
    ),
)

PEER_RULES = (
    PeerRule(
        "NET-FRONT-END-DIFFERS",
        "W",
        "the netdev of the default route is slower than on most hosts of the cluster",
        "traffic between clusters, to storage and to the controller is slower on this host",
        "`ethtool NETDEV`: cable, switch port and autonegotiation",
        "ethtool(8); " + FIELD,
        lambda hosts: below(hosts, "front end", _front_end_rate, format_rate),
    ),
    PeerRule(
        "NET-FRONT-END-DIFFERS",
        "I",
        "the MTU of the netdev of the default route differs between hosts of a cluster",
        "large packets may be lost if path MTU discovery is filtered: connections hang after they open",
        "set the same MTU on all hosts' netdevs and on the switch",
        "Linux, Documentation/networking/ip-sysctl.rst (ip_no_pmtu_disc)",
        lambda hosts: differing(hosts, "MTU of the front end", _front_end_mtu),
    ),
    PeerRule(
        "NET-MASK-DIFFERS",
        "W",
        "a network of rails lies inside another one's, with a longer mask",
        "packets to some peers go through a gateway, or nowhere",
        "give all addresses of a network the same mask",
        "Linux, ip-route(8) (the longest prefix wins)",
        _masks,
    ),
    PeerRule(
        "NET-IPOIB-DIFFERS",
        "W",
        "InfiniBand hosts that look like one fabric have IPoIB networks that do not meet",
        "taken to be one fabric; sockets over IPoIB would not connect",
        "give one interface of each host an address in one network; if it is two fabrics, pin `cluster:` in hosts.yaml",
        "Linux, Documentation/infiniband/ipoib.rst; " + FIELD,
        _ipoib_differs,
    ),
    PeerRule(
        "NET-ADDRESS-TWICE",
        "W",
        "rails of two hosts share one address but differ in others",
        "packets for one of the two reach the other",
        "correct one of the addresses; `arping -D -I NETDEV ADDRESS` shows if another host answers for it",
        "RFC 5227, IPv4 address conflict detection; iputils, arping(8)",
        _addresses_twice,
    ),
)
