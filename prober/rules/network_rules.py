"""Networks between clusters."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from holmes_core.records.inventory import Cluster, Finding, Host, Network
from prober.clusters import VIRTUAL_NAMES


def network_findings(hosts: Sequence[Host], clusters: Sequence[Cluster], shared: Network | None) -> list[Finding]:
    """Findings about what joins the clusters."""
    reachable = [host for host in hosts if host.reachable]
    findings = []
    addresses_known = all(any(netdev.addresses for netdev in host.netdevs) for host in reachable)
    if shared is None and len(clusters) > 1 and addresses_known:
        findings.append(_no_shared_network(reachable))
    if shared is not None:
        findings += _interface_names_differ(shared)
    return findings + _subnet_conflicts(clusters) + _covered_by_containers(reachable, shared)


def _no_shared_network(hosts: Sequence[Host]) -> Finding:
    return Finding(
        rule="NET-NO-SHARED-SUBNET",
        severity="F",
        hosts=tuple(host.name for host in hosts),
        evidence="no IPv4 network on which every host has an address, and not every host has a default route",
        effect="clusters cannot reach each other",
        remedy="give every host an address on one Ethernet, or routes between the networks",
    )


def _interface_names_differ(shared: Network) -> list[Finding]:
    names = sorted({str(port.netdev) for port in shared.ports})
    if len(names) < 2:
        return []
    finding = Finding(
        rule="NET-IFNAME-DIFFERS",
        severity="I",
        hosts=tuple(port.host for port in shared.ports),
        evidence=f"the interface on {shared.subnet or 'the shared network'} is called {', '.join(names)}",
        effect="one NCCL_SOCKET_IFNAME for all hosts would not work",
        remedy="nothing with Holmes, which sets it for each host",
    )
    return [finding]


def _subnet_conflicts(clusters: Sequence[Cluster]) -> list[Finding]:
    """Two clusters that use one prefix for different wires: routing between them is undefined."""
    findings = []
    for position, cluster in enumerate(clusters):
        for other in clusters[position + 1 :]:
            subnet = cluster.fabric.subnet
            if subnet and subnet == other.fabric.subnet and cluster.fabric.kind not in ("EFA", "Ethernet", "loopback"):
                evidence = f"{cluster.name} and {other.name} both use {subnet}"
                findings.append(_conflict((*cluster.hosts, *other.hosts), evidence))
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
                    findings.append(_conflict((host.name,), evidence))
    return findings


def _conflict(hosts: tuple[str, ...], evidence: str) -> Finding:
    return Finding(
        rule="NET-SUBNET-CONFLICT",
        severity="F",
        hosts=hosts,
        evidence=evidence,
        effect="packets go to the wrong wire",
        remedy="renumber one of the networks",
    )
