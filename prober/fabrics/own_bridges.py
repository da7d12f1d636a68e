"""Find networks that look shared but exist inside each machine, such as the machines' container bridges.

Machines on one wire have different addresses. If most machines on a network have the address of another one, each
machine has a network of its own. Two sites may also use the same addresses. Then the addresses differ inside each
cluster in hosts.yaml.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

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
    "nothing if it is a container's bridge; if it is one network, give every host an address of its own; if several "
    "sites use the same addresses, name each site's hosts by `cluster:` in hosts.yaml",
    "Docker documentation, bridge network driver; RFC 5227, IPv4 address conflict detection",
)
CUT_OFF = RuleText(
    "NET-NO-SHARED-SUBNET",
    "F",
    "a host only has addresses on bridges inside its machine",
    "hosts cannot reach it: the address leads each of them to itself",
    "give the containers the machine's network (`docker run --network host`, `hostNetwork: true`), or an overlay or "
    "private network on which each has an address of its own; on one network correct the address that is set twice",
    "Docker documentation, networking overview (bridge, host, overlay)",
)
TEXTS = (OWN_BRIDGE, CUT_OFF)


class _Seat(NamedTuple):
    """One host on a network: its machine, its cluster in hosts.yaml, and its addresses there."""

    machine: str
    cluster: str | None
    addresses: frozenset[str]


def with_own_bridges(hosts: Sequence[Host], pinned: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the hosts, with netdevs inside their machines marked as isolated. `pinned`: clusters by host."""
    seats: dict[str, list[_Seat]] = {}
    for host in hosts:
        there: dict[str, set[str]] = {}
        for netdev in host.netdevs if host.access.transport != "local" else ():
            for interface in netdev.addresses if carries_traffic(netdev) else ():
                there.setdefault(network_of(interface), set()).add(interface)
        for network, addresses in there.items():
            seat = _Seat(host.boot_id or host.name, pinned.get(host.name), frozenset(addresses))
            seats.setdefault(network, []).append(seat)
    isolated = {network for network, there in seats.items() if _is_inside_machines(there)}
    return tuple(_with_isolated(host, isolated) for host in hosts)


def is_cut_off(host: Host) -> bool:
    """Return True if all of the host's addresses are on networks inside its machine."""
    has_way = any(carries_traffic(netdev) for netdev in host.netdevs)
    return not has_way and any(netdev.isolated for netdev in host.netdevs)


def own_bridge_findings(hosts: Sequence[Host]) -> Iterable[Finding]:
    """Yield a finding per network inside machines, and a separate one for its hosts that have no other network."""
    for text, cut_off in ((OWN_BRIDGE, False), (CUT_OFF, True)):
        affected = [host for host in hosts if is_cut_off(host) == cut_off]
        for seats in _seats(affected).values():
            names = dict.fromkeys(name for there in seats.values() for name in there)
            shown = "; ".join(f"{netdev} of {format_names(there, 3)}" for netdev, there in seats.items())
            yield text.finding(tuple(names), shown)


def _is_inside_machines(seats: Sequence[_Seat]) -> bool:
    """Return True if most machines share their addresses with others, and in each cluster of hosts.yaml too."""
    if not _most_share_addresses(seats):
        return False
    clusters = {seat.cluster for seat in seats} - {None}
    in_clusters = [[seat for seat in seats if seat.cluster == cluster] for cluster in clusters]
    return all(_most_share_addresses(there) for there in in_clusters if len({seat.machine for seat in there}) > 1)


def _most_share_addresses(seats: Sequence[_Seat]) -> bool:
    owners = Counter(address for _, address in {(seat.machine, text) for seat in seats for text in seat.addresses})
    alike = {seat.machine for seat in seats if all(owners[address] > 1 for address in seat.addresses)}
    return 2 * len(alike) > len({seat.machine for seat in seats})


def _with_isolated(host: Host, isolated: Set[str]) -> Host:
    def marked(netdev: Netdev) -> Netdev:
        networks = {network_of(interface) for interface in netdev.addresses}
        return netdev.model_copy(update={"isolated": True}) if networks and networks <= isolated else netdev

    return host.model_copy(update={"netdevs": tuple(map(marked, host.netdevs))}) if isolated else host


def _seats(hosts: Iterable[Host]) -> Mapping[str, Mapping[str, list[str]]]:
    """Return, by isolated network, the host names by netdev and address."""
    found: dict[str, dict[str, list[str]]] = {}
    for host in hosts:
        for netdev in host.netdevs:
            for interface in netdev.addresses if netdev.isolated else ():
                seat = f"{netdev.name} {interface}"
                found.setdefault(network_of(interface), {}).setdefault(seat, []).append(host.name)
    return found
