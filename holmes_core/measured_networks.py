"""Networks of an inventory that tests measured, and pairs of clusters that only the tunnel's hub joins."""

from __future__ import annotations

from itertools import combinations

from holmes_core.records.inventory import Inventory

Clusters = frozenset[str]
"""Two clusters, or one for the hosts inside it."""


def relayed_pairs(inventory: Inventory) -> frozenset[Clusters]:
    """Return the pairs of clusters whose hosts reach one another only through the hub; none without one.

    Clusters have a direct path if a tunnel was measured between hosts of theirs other than the hub. A hub that is alone
    in its cluster has one to everywhere.
    """
    hub = inventory.security.tunnel_hub
    if hub is None:
        return frozenset()
    direct = {frozenset(link.clusters) for link in inventory.links if link.tunnel and hub not in link.hosts}
    others = [cluster.name for cluster in inventory.clusters if cluster.hosts != (hub,)]
    return frozenset(map(frozenset, combinations(others, 2))) - direct


def measured_networks(inventory: Inventory) -> set[Clusters]:
    """Return the networks whose rate is measured or stated, relayed pairs if both ways to the hub are."""
    known = {frozenset(link.clusters) for link in inventory.links}
    known |= {frozenset(trunk.clusters) for trunk in inventory.trunks if len(trunk.clusters) > 1}
    at_hub = {cluster.name for cluster in inventory.clusters if inventory.security.tunnel_hub in cluster.hosts}
    relayed = relayed_pairs(inventory) if at_hub else ()
    return known | {pair for pair in relayed if all(at_hub | {name} in known for name in pair - at_hub)}
