"""Network interfaces: all that is known of each, put together by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holmes_core.records.inventory import Conflict, Netdev
from prober.asking.merge import merged, updated
from prober.facts.netdev.netdev_facts import NetdevFacts, looks_physical, netdev_record

_COMPARED = ("mtu", "link_detected", "speed_mbps", "driver", "firmware")


@dataclass(frozen=True)
class NetdevReading:
    """The netdevs of a host, which of them are cards, and where its sources disagree about them."""

    netdevs: tuple[Netdev, ...]
    physical: tuple[str, ...]
    conflicts: tuple[Conflict, ...]


def read_netdevs(
    sources: Sequence[tuple[str, Iterable[NetdevFacts]]],
    pinned_gbps: Mapping[str, float],
    names_by_pci: Mapping[str, str],
) -> NetdevReading:
    """The netdevs in (source, facts) in order of trust. `names_by_pci` names those told by PCI address alone."""
    collected: dict[str, list[tuple[str, NetdevFacts]]] = {}
    for source, facts in sources:
        for name, netdev in _by_name(facts, names_by_pci).items():
            collected.setdefault(name, []).append((source, netdev))
    netdevs, physical, conflicts = [], [], []
    for name, told_by in collected.items():
        known, found = merged(name, told_by, _COMPARED)
        netdevs.append(netdev_record(known, pinned_gbps))
        conflicts += found
        if looks_physical(known):
            physical.append(name)
    return NetdevReading(tuple(netdevs), tuple(physical), tuple(conflicts))


def _by_name(facts: Iterable[NetdevFacts], names_by_pci: Mapping[str, str]) -> dict[str, NetdevFacts]:
    known: dict[str, NetdevFacts] = {}
    for netdev in facts:
        name = netdev.name or names_by_pci.get(netdev.pci_address or "")
        if name:
            named = replace(netdev, name=name)
            known[name] = updated(known[name], named) if name in known else named
    return known
