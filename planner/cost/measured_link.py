"""Measurements between two clusters or inside one: rates of hosts, latency, and what all hosts share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from holmes_core.measured_networks import Clusters
from holmes_core.records.inventory import Inventory


class HostRate(NamedTuple):
    """Bytes/s that a host gets over TCP in each direction; None if its ports are the limit.

    `raised`: the rate holds even if the port reports less.
    """

    bytes_per_s: float | None
    raised: bool = False

    def with_port(self, port_bytes_per_s: float | None) -> float | None:
        """Return the rate of the host with such a port; None if not known."""
        if self.bytes_per_s is None or port_bytes_per_s == 0:
            return port_bytes_per_s
        if self.raised or port_bytes_per_s is None:
            return self.bytes_per_s
        return min(self.bytes_per_s, port_bytes_per_s)


PORTS_ALONE = HostRate(None)


@dataclass(frozen=True)
class MeasuredLink:
    """A measurement between two clusters or inside one.

    A host gets its rate of `hosts` over TCP, or `others` if it was in no pair, and over RDMA `rdma_share` of its ports'
    rate. `median` is that of all pairs. `trunk_bytes_per_s` is for all hosts together, and `uplinks`, by cluster, are
    in bytes/s for all that leaves or enters it. `hub_bytes_per_s`: of the tunnel's hub, for all that it relays.
    """

    median: HostRate = PORTS_ALONE
    hosts: Mapping[str, HostRate] = field(default_factory=dict)
    others: HostRate = PORTS_ALONE
    rdma_share: float = 1.0
    streams: int = 1  # TCP connections side by side that got that rate
    latency_s: float = 0.0
    trunk_bytes_per_s: float | None = None
    uplinks: Mapping[str, float] = field(default_factory=dict)
    hub_bytes_per_s: float | None = None

    def host_bytes_per_s(self, host: str, port_bytes_per_s: float | None) -> float | None:
        """Return the rate of `host` with such a port over TCP; None if not known."""
        return self.hosts.get(host, self.others).with_port(port_bytes_per_s)

    @property
    def fastest_bytes_per_s(self) -> float | None:
        """The rate that no host exceeds; None if the ports of any host are its limit."""
        rates = [rate.bytes_per_s for rate in (*self.hosts.values(), self.others)]
        return None if None in rates else max(rate for rate in rates if rate is not None)


NOT_MEASURED = MeasuredLink()


def cluster_pairs(inventory: Inventory) -> Iterator[Clusters]:
    """Yield every two clusters, in their order."""
    return (frozenset({one.name, other.name}) for one, other in combinations(inventory.clusters, 2))
