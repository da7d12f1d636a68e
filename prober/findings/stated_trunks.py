"""Trunks that hosts.yaml states, checked against the clusters and the measured trunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holmes_core.hosts.hosts_file import StatedTrunk
from holmes_core.records.inventory import Cluster, Finding, Inventory
from holmes_core.records.link import Trunk
from holmes_core.units import bytes_per_s_from_gbps, format_rate
from prober.rules.reported_rules import TRUNK_LOW, TRUNK_UNKNOWN

LOW_SHARE = 0.80  # of a stated line rate; headers take a twentieth of it


def find_stated_trunks(
    stated: Iterable[StatedTrunk], clusters: Sequence[Cluster]
) -> tuple[tuple[Trunk, ...], tuple[Finding, ...]]:
    """Return the trunks and uplinks of known clusters, and a finding on each other one."""
    names = [cluster.name for cluster in clusters]
    trunks, findings = [], []
    for trunk in stated:
        missing = [name for name in trunk.clusters if name not in names]
        if missing:
            found = ", ".join(names) or "none"
            seen = f"`trunks:` is about {' and '.join(trunk.clusters)}; found: {found}, not {' nor '.join(missing)}"
            findings.append(TRUNK_UNKNOWN.finding([host for cluster in clusters for host in cluster.hosts], seen))
        else:
            ends, rate = tuple(sorted(trunk.clusters, key=names.index)), bytes_per_s_from_gbps(trunk.gbps)
            trunks.append(Trunk(clusters=ends, bandwidth_bytes_per_s=rate, source="hosts.yaml", pairs=0))
    return tuple(trunks), tuple(findings)


def with_measured(inventory: Inventory, measured: Iterable[Trunk]) -> Inventory:
    """Return the inventory with measured trunks that are not stated, and findings on those far below a stated rate."""
    stated = {frozenset(trunk.clusters): trunk for trunk in inventory.trunks}
    trunks, findings = list(inventory.trunks), list(inventory.findings)
    for trunk in measured:
        other = stated.get(frozenset(trunk.clusters))
        if other is None:
            trunks.append(trunk)
        elif trunk.bandwidth_bytes_per_s < LOW_SHARE * other.bandwidth_bytes_per_s:
            findings.append(_low(inventory, trunk, other))
    return inventory.model_copy(update={"trunks": tuple(trunks), "findings": tuple(findings)})


def _low(inventory: Inventory, measured: Trunk, stated: Trunk) -> Finding:
    members = [cluster.hosts for cluster in inventory.clusters if cluster.name in stated.clusters]
    seen = f"{format_rate(measured.bandwidth_bytes_per_s)} by {measured.pairs} pairs of hosts at once"
    share = f"{measured.bandwidth_bytes_per_s / stated.bandwidth_bytes_per_s:.0%}"
    stated_rate, (first, *others) = format_rate(stated.bandwidth_bytes_per_s), stated.clusters
    wire = f"{first} to {others[0]}" if others else f"the uplink of {first}"
    return TRUNK_LOW.finding(
        [host for hosts in members for host in hosts],
        f"{wire}: {seen}, {share} of the {stated_rate} that hosts.yaml states",
    )
