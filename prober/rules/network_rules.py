"""Networks between clusters."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from holmes_core.records.inventory import Cluster, Finding, Host, Network
from prober.clusters import VIRTUAL_NAMES
from prober.rules.rule import FIELD, About

NO_SHARED_NETWORK = About(
    "NET-NO-SHARED-SUBNET",
    "F",
    "there are several clusters, no IPv4 network on which every host has an address, and not every host has a default "
    "route",
    "clusters cannot reach each other",
    "give every host an address on one Ethernet, or routes between the networks",
    "NVIDIA/nccl#878",
)
NAMES_DIFFER = About(
    "NET-IFNAME-DIFFERS",
    "I",
    "the interface on the shared network has different names on different hosts",
    "one NCCL_SOCKET_IFNAME for all hosts would not work",
    "nothing with Holmes, which sets it for each host",
    "aws-samples/aws-do-eks#51",
)
SUBNET_CONFLICT = About(
    "NET-SUBNET-CONFLICT",
    "F",
    "two clusters use one prefix for different wires, or a container bridge's prefix holds a peer's address",
    "packets go to the wrong wire",
    "renumber one of the networks; of Docker's bridges `default-address-pools` in /etc/docker/daemon.json",
    "Docker documentation, daemon configuration (default-address-pools); Linux, ip-route(8)",
)
CONFLICT_ASIDE = About(
    "NET-SUBNET-CONFLICT",
    "I",
    "two clusters use one prefix for different wires, and have a shared network besides",
    "none between these clusters, which use the shared network",
    "nothing; renumber one before you route between them",
    "Linux, ip-route(8); " + FIELD,
)
ABOUT = (NO_SHARED_NETWORK, NAMES_DIFFER, SUBNET_CONFLICT, CONFLICT_ASIDE)


def network_findings(hosts: Sequence[Host], clusters: Sequence[Cluster], shared: Network | None) -> list[Finding]:
    """Findings about what joins the clusters."""
    reachable = [host for host in hosts if host.reachable]
    findings = []
    addresses_known = all(any(netdev.addresses for netdev in host.netdevs) for host in reachable)
    if shared is None and len(clusters) > 1 and addresses_known:
        findings.append(_no_shared_network(reachable))
    if shared is not None:
        findings += _interface_names_differ(shared)
    return findings + _subnet_conflicts(clusters, shared) + _covered_by_containers(reachable, shared)


def _no_shared_network(hosts: Sequence[Host]) -> Finding:
    names = [host.name for host in hosts]
    return NO_SHARED_NETWORK.finding(
        names, "no IPv4 network on which every host has an address, and not every host has a default route"
    )


def _interface_names_differ(shared: Network) -> list[Finding]:
    names = sorted({str(port.netdev) for port in shared.ports})
    if len(names) < 2:
        return []
    evidence = f"the interface on {shared.subnet or 'the shared network'} is called {', '.join(names)}"
    return [NAMES_DIFFER.finding([port.host for port in shared.ports], evidence)]


def _subnet_conflicts(clusters: Sequence[Cluster], shared: Network | None) -> list[Finding]:
    """Two clusters that use one prefix for different wires: routing between them is undefined.

    That harms nobody where what they send one another goes over a shared network of its own.
    """
    findings = []
    for position, cluster in enumerate(clusters):
        for other in clusters[position + 1 :]:
            subnet = cluster.fabric.subnet
            if subnet and subnet == other.fabric.subnet and cluster.fabric.kind not in ("EFA", "Ethernet", "loopback"):
                evidence = f"{cluster.name} and {other.name} both use {subnet}"
                aside = shared is not None and shared.subnet not in (None, subnet)
                conflict = CONFLICT_ASIDE if aside else SUBNET_CONFLICT
                findings.append(conflict.finding((*cluster.hosts, *other.hosts), evidence))
    return findings


def _covered_by_containers(hosts: Sequence[Host], shared: Network | None) -> list[Finding]:
    """A container bridge whose prefix holds a peer's address swallows the traffic to that peer."""
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
