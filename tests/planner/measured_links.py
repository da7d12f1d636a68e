"""Links and trunks as a probe would have measured them, for the fleets of the tests."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.records.inventory import Inventory
from holmes_core.records.link import Link, LinkMethod, Spread, Trunk


def measured(
    hosts: tuple[str, str],
    bytes_per_s: float,
    latency_s: float = 1e-9,
    streams: int = 1,
    method: LinkMethod = "tcp",
    devices: tuple[str, str] | None = None,
) -> Link:
    """One direction of two hosts of fleets.py, whose clusters are the letters of their names."""
    clusters = (hosts[0][0], hosts[1][0])
    inside = clusters[0] == clusters[1]
    netdev = "eth1" if inside else "eth0"
    return Link(
        kind="inside" if inside else "between",
        network=clusters[0] if inside else "shared",
        clusters=clusters,
        hosts=hosts,
        devices=devices or (netdev, netdev),
        method=method,
        streams=streams,
        direction="forward",
        latency_s=None if method == "ib_write_bw" else Spread(min=latency_s, median=latency_s),
        bandwidth_bytes_per_s=Spread(min=bytes_per_s, median=bytes_per_s),
        samples=3,
    )


def both_ways(link: Link) -> tuple[Link, Link]:
    """The link, and the same the other way."""
    return link, link.model_copy(update={"direction": "backward"})


def with_links(inventory: Inventory, *links: Link) -> Inventory:
    """The inventory with those links."""
    return inventory.model_copy(update={"links": links})


def with_trunk(inventory: Inventory, clusters: Sequence[str], bytes_per_s: float) -> Inventory:
    """The inventory with a trunk between two clusters, or the uplink of one."""
    trunk = Trunk(clusters=tuple(clusters), bandwidth_bytes_per_s=bytes_per_s, source="measured", pairs=2)
    return inventory.model_copy(update={"trunks": (*inventory.trunks, trunk)})


def with_latency(inventory: Inventory, seconds: float) -> Inventory:
    """The inventory with that latency between all clusters, at the rates of the ports."""
    assert inventory.shared is not None
    slowest = min(port.bandwidth_bytes_per_s or 0.0 for port in inventory.shared.ports)
    firsts = [cluster.hosts[0] for cluster in inventory.clusters]
    links = [measured((a, b), 0.94 * slowest, seconds) for i, a in enumerate(firsts) for b in firsts[i + 1 :]]
    return with_links(inventory, *links)
