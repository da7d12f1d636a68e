"""Paths through the tunnel's hub: the rate of each, and the rate that all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holmes_core.measured_networks import Clusters, relayed_pairs
from holmes_core.records.inventory import Inventory
from planner.cost.measured_link import NOT_MEASURED, HostRate, MeasuredLink


def through_hub(
    inventory: Inventory, connections: Mapping[Clusters, MeasuredLink], port_bytes_per_s: float | None
) -> Mapping[Clusters, MeasuredLink]:
    """Return the connections, with relayed pairs of clusters joined over the hub.

    All relayed pairs share the rate of the hub's fastest path. `port_bytes_per_s`: the rate of the hub's port.
    """
    hub = inventory.security.tunnel_hub or ""
    at_hub = next((each.name for each in inventory.clusters if hub in each.hosts), "")
    to_hub = {name: connections.get(frozenset({at_hub, name}), NOT_MEASURED) for name in _names(inventory, at_hub)}
    rates = [way.host_bytes_per_s(hub, port_bytes_per_s) for way in to_hub.values()]
    most = max((rate for rate in rates if rate is not None), default=None)
    joined = {pair: _joined([to_hub[name] for name in sorted(pair - {at_hub})]) for pair in relayed_pairs(inventory)}
    return {**connections, **{pair: replace(each, hub_bytes_per_s=most) for pair, each in joined.items()}}


def _names(inventory: Inventory, at_hub: str) -> list[str]:
    return [each.name for each in inventory.clusters if each.name != at_hub]


def _joined(ways: Sequence[MeasuredLink]) -> MeasuredLink:
    """Return the path over all `ways` in a row: the slowest rate, and the sum of the latencies."""
    joined = NOT_MEASURED
    for way in ways:
        trunks = [rate for rate in (joined.trunk_bytes_per_s, way.trunk_bytes_per_s) if rate is not None]
        joined = replace(
            way,
            median=_slower(joined.median, way.median),
            hosts={**joined.hosts, **way.hosts},
            others=_slower(joined.others, way.others),
            streams=max(joined.streams, way.streams),
            latency_s=joined.latency_s + way.latency_s,
            trunk_bytes_per_s=min(trunks, default=None),
            uplinks={**joined.uplinks, **way.uplinks},
        )
    return joined


def _slower(one: HostRate, other: HostRate) -> HostRate:
    """Return the lower rate; that of ports alone if they limit both."""
    known = [rate for rate in (one, other) if rate.bytes_per_s is not None]
    return min(known, key=lambda rate: rate.bytes_per_s or 0.0, default=one)
