"""Seconds one message is under way between clusters, as the probe's link test measured them."""

from __future__ import annotations

from collections.abc import Mapping

from holmes_core.records.inventory import Inventory

Latencies = Mapping[frozenset[str], float]
"""By the clusters at both ends, one name inside a cluster; a pair that was not measured is missing."""


def read_latencies(inventory: Inventory) -> Latencies:
    """The largest median between each pair of clusters, and inside each."""
    found: dict[frozenset[str], float] = {}
    for link in inventory.links:
        if link.latency_s is not None:
            key = frozenset(link.clusters)
            found[key] = max(found.get(key, 0.0), link.latency_s.median)
    return found
