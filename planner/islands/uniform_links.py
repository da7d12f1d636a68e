"""An inventory with all clusters joined at one rate and latency, to compare modes on other networks."""

from __future__ import annotations

from itertools import combinations

from holmes_core.records.inventory import Cluster, Inventory, NetworkPort, stated_link
from holmes_core.records.link import Link


def with_uniform_links(inventory: Inventory, bandwidth_bytes_per_s: float, latency_s: float) -> Inventory:
    """Return the inventory as if tests had measured this payload rate and latency between any two clusters.

    Clusters are then joined directly, without a tunnel's hub and without known trunks. Links inside clusters stay.
    """
    inside = tuple(link for link in inventory.links if len(set(link.clusters)) == 1)
    between = tuple(
        assumed_link(inventory, pair, bandwidth_bytes_per_s, latency_s) for pair in combinations(inventory.clusters, 2)
    )
    direct = inventory.security.model_copy(update={"tunnel_hub": None, "tunnel_hub_address": None})
    return inventory.model_copy(update={"links": (*inside, *between), "trunks": (), "security": direct})


def assumed_link(
    inventory: Inventory, pair: tuple[Cluster, Cluster], bandwidth_bytes_per_s: float, latency_s: float | None
) -> Link:
    """Return a link between two clusters as if a test had measured this payload rate and latency."""
    one, other = (_port(inventory, cluster) for cluster in pair)
    return stated_link("shared", (pair[0].name, pair[1].name), (one, other), bandwidth_bytes_per_s, latency_s)


def _port(inventory: Inventory, cluster: Cluster) -> NetworkPort:
    """Return the shared port of a host of the cluster."""
    assert inventory.shared is not None
    return next(port for port in inventory.shared.ports if port.host in cluster.hosts)
