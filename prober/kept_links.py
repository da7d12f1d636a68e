"""Measurements of an older probe that still hold, because the hosts' ports and addresses have not changed."""

from __future__ import annotations

from dataclasses import dataclass

from holmes_core.records.inventory import Host, Inventory
from holmes_core.records.link import Link
from holmes_core.units import format_names
from prober.findings.audit import joined
from prober.findings.stated_trunks import with_measured
from prober.links.link_audit import audit_links

MAX_NAMED = 6


@dataclass(frozen=True)
class WithKept:
    """An inventory with the measurements that still hold, and a sentence about the others."""

    inventory: Inventory
    lost: str | None


def with_kept_links(older: Inventory, newer: Inventory) -> WithKept:
    """Return `newer`, whose probe measured nothing, with the measurements of `older` that still hold."""
    changed = {host.name for host in older.hosts if not _is_unchanged(host, newer)}
    homes = {name: cluster.name for cluster in newer.clusters for name in cluster.hosts}
    links = tuple(
        link
        for link in older.links
        if not changed & set(link.hosts) and tuple(homes.get(host) for host in link.hosts) == link.clusters
    )
    between = {frozenset(link.clusters) for link in links if link.kind == "between"}
    measured = [each for each in older.trunks if each.source == "measured"]
    trunks = [each for each in measured if any(pair.issuperset(each.clusters) for pair in between)]
    inventory = with_measured(newer, trunks)
    findings = joined((*inventory.findings, *audit_links(inventory, links)))
    inventory = inventory.model_copy(update={"links": links, "findings": findings})
    return WithKept(inventory, _lost_sentence(older, links, changed))


def _lost_sentence(older: Inventory, kept: tuple[Link, ...], changed: set[str]) -> str | None:
    gone = [link for link in older.links if link not in kept]
    if not gone:
        return None
    names = sorted(changed & {host for link in gone for host in link.hosts})
    why = f"{format_names(names, MAX_NAMED)} changed or did not answer" if names else "their clusters changed"
    verb = "s are" if len(gone) > 1 else " is"
    return f"{len(gone)} measured link{verb} gone: {why}; `--links` measures again"


def _is_unchanged(host: Host, newer: Inventory) -> bool:
    later = next((each for each in newer.hosts if each.name == host.name), None)
    return later is not None and later.reachable and _ports(later) == _ports(host)


def _ports(host: Host) -> object:
    """Return the names, addresses, rates and kinds of a host's ports, without counters."""
    netdevs = {
        (netdev.name, netdev.up, netdev.mtu, netdev.addresses, netdev.speed_bytes_per_s)
        for netdev in host.netdevs
        if netdev.addresses
    }
    return netdevs, {(nic.hca, nic.kind, nic.rate_gbps, nic.state, nic.netdev) for nic in host.nics}
