"""Networks inside each machine that look shared, such as the bridges on which containers of several machines sit alone.

Two machines on one wire have different addresses. Where most machines of a network have an address that another one has
too, it is not one network: each machine has its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from holmes_core.records.devices import Netdev
from holmes_core.records.inventory import Finding, Host
from holmes_core.units import format_names
from prober.fabrics.fabric import carries_traffic
from prober.rails.port_networks import network_of
from prober.rule_text import RuleText

OWN_BRIDGE = RuleText(
    "NET-OWN-BRIDGE",
    "I",
    "most hosts of a network have an address on it that another host has too",
    "it is taken for a bridge inside each machine, which carries nothing between hosts",
    "nothing if it is a container's bridge; if it is one network, give every host an address of its own",
    "Docker documentation, bridge network driver; RFC 5227, IPv4 address conflict detection",
)
CUT_OFF = RuleText(
    "NET-NO-SHARED-SUBNET",
    "F",
    "a host has addresses on bridges inside its machine alone",
    "hosts cannot reach it: the address leads each of them to itself",
    "give the containers the machine's network (`docker run --network host`, `hostNetwork: true`), or an overlay or "
    "private network on which each has an address of its own; on one network correct the address that is set twice",
    "Docker documentation, networking overview (bridge, host, overlay)",
)
TEXTS = (OWN_BRIDGE, CUT_OFF)


def with_own_bridges(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the hosts with the netdevs of such networks marked as isolated."""
    addresses: dict[str, dict[str, set[str]]] = {}  # by network and machine
    for host in hosts:
        for netdev in host.netdevs if host.access.transport != "local" else ():
            for interface in netdev.addresses if carries_traffic(netdev) else ():
                machine = host.boot_id or host.name
                addresses.setdefault(network_of(interface), {}).setdefault(machine, set()).add(interface)
    isolated = {network for network, of_machines in addresses.items() if _is_each_ones_own(of_machines)}
    return tuple(_with_isolated(host, isolated) for host in hosts)


def is_cut_off(host: Host) -> bool:
    """Return True if all addresses of the host are on such networks."""
    has_way = any(carries_traffic(netdev) for netdev in host.netdevs)
    return not has_way and any(netdev.isolated for netdev in host.netdevs)


def own_bridge_findings(hosts: Sequence[Host]) -> Iterable[Finding]:
    """Yield a finding on each such network, and one on hosts that have no other."""
    for text, cut_off in ((OWN_BRIDGE, False), (CUT_OFF, True)):
        affected = [host for host in hosts if is_cut_off(host) == cut_off]
        for seats in _seats(affected).values():
            names = dict.fromkeys(name for there in seats.values() for name in there)
            shown = "; ".join(f"{netdev} of {format_names(there, 3)}" for netdev, there in seats.items())
            yield text.finding(tuple(names), shown)


def _is_each_ones_own(of_machines: Mapping[str, Set[str]]) -> bool:
    owners = Counter(address for addresses in of_machines.values() for address in addresses)
    alike = [any(owners[address] > 1 for address in addresses) for addresses in of_machines.values()]
    return 2 * sum(alike) > len(alike)


def _with_isolated(host: Host, isolated: Set[str]) -> Host:
    def marked(netdev: Netdev) -> Netdev:
        networks = {network_of(interface) for interface in netdev.addresses}
        return netdev.model_copy(update={"isolated": True}) if networks and networks <= isolated else netdev

    return host.model_copy(update={"netdevs": tuple(map(marked, host.netdevs))}) if isolated else host


def _seats(hosts: Iterable[Host]) -> Mapping[str, Mapping[str, list[str]]]:
    """Return the names of hosts by isolated network, and by netdev and address there."""
    found: dict[str, dict[str, list[str]]] = {}
    for host in hosts:
        for netdev in host.netdevs:
            for interface in netdev.addresses if netdev.isolated else ():
                seat = f"{netdev.name} {interface}"
                found.setdefault(network_of(interface), {}).setdefault(seat, []).append(host.name)
    return found
