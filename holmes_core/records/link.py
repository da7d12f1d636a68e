"""Link: the result of one test between two hosts. Trunk: a wire that many hosts share. Security."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address
from math import inf
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from holmes_core.records.record import Record, SparseRecord
from holmes_core.units import bytes_per_s_from_gbps

LinkKind = Literal["inside", "between"]
LinkMethod = Literal["ib_write_bw", "iperf3", "tcp", "stated"]
"""Program that measured a link. iperf3: in inventories from before 2026-11-26. stated: the rate is assumed."""
Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
IPv4 = Annotated[str, AfterValidator(lambda text: str(IPv4Address(text)))]
Memory = Literal["host", "gpu"]
"""The memory at both ends of the transfer."""

TOOL_CEILING_BYTES_PER_S: Mapping[LinkMethod, float] = {
    "tcp": bytes_per_s_from_gbps(10),
    "iperf3": bytes_per_s_from_gbps(20),
    "ib_write_bw": inf,
    "stated": inf,
}
"""The rate that the tool certainly reaches on one core. Above it, the tool may be slower than the link."""


class Spread(Record):
    """Smallest and middle value of several samples, in the unit of the field that holds it."""

    min: float = Field(gt=0)
    median: float = Field(gt=0)

    @model_validator(mode="after")
    def _min_is_smallest(self) -> Spread:
        if self.median < self.min:
            raise ValueError(f"median {self.median} is below min {self.min}")
        return self


class Link(Record):
    """One test between two hosts, on a cluster's fabric or between clusters on the shared network."""

    kind: LinkKind
    network: str
    clusters: tuple[str, str]
    hosts: tuple[str, str]
    devices: tuple[str, str]  # netdevs of the hosts, or for `ib_write_bw` HCAs, `mlx5_0:1`
    method: LinkMethod
    streams: int = Field(ge=1)
    direction: Direction  # forward: hosts[0] sent to hosts[1]
    latency_s: Spread | None  # half a TCP round trip; None for `ib_write_bw`
    bandwidth_bytes_per_s: Spread
    samples: int = Field(ge=1)  # windows of one transfer, or repeated runs of `ib_write_bw`
    memory: Memory = "host"
    tunnel: bool = False  # inside a WireGuard tunnel between `devices`, for this test alone
    measured_at_s: float | None = None  # by the controller's clock, since 1970

    @property
    def way(self) -> tuple[str, tuple[str, str], tuple[str, str], Direction, bool, Memory]:
        """The key shared by tests that differ only in streams."""
        return self.network, self.hosts, self.devices, self.direction, self.tunnel, self.memory


def best_links(links: Iterable[Link]) -> Iterable[Link]:
    """Return the link with the highest median among links that differ in streams alone."""
    best: dict[object, Link] = {}
    for link in links:
        if link.way not in best or link.bandwidth_bytes_per_s.median > best[link.way].bandwidth_bytes_per_s.median:
            best[link.way] = link
    return best.values()


class Trunk(Record):
    """The bandwidth that all traffic between two clusters shares, in each direction at the same time.

    With one cluster, it is the uplink: all traffic out of the cluster shares the rate, and so does all traffic into it.
    """

    clusters: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]
    bandwidth_bytes_per_s: float = Field(gt=0)  # payload, in the slower direction; a stated one is a line rate
    source: Literal["hosts.yaml", "measured"]
    pairs: int = Field(ge=0)  # hosts that sent at once, for a measured one
    measured_at_s: float | None = None  # by the controller's clock, since 1970


class Security(SparseRecord):
    """Protection of traffic between clusters; traffic inside a cluster is never encrypted."""

    RARE: ClassVar[tuple[str, ...]] = ("tunnel_hub", "tunnel_hub_address")

    between_clusters: Literal["clear", "wireguard"] = "clear"
    """wireguard: encrypted, in a tunnel that each run makes and takes away. Example: wireguard"""
    tunnel_gbps: Annotated[float, Field(gt=0, le=1e6, strict=True)] | None = None
    """Gbit/s that a host encrypts at most, each way, for all its traffic together; not set: as much as its network
    carries. Example: 5.0"""
    tunnel_hub: str | None = None
    """Host of this file that relays the tunnel between clusters without a direct path, such as sites behind NAT. Only
    its UDP port 51820 must be open. With `gpus: []` it trains nothing. Example: gateway"""
    tunnel_hub_address: IPv4 | None = None
    """Address at which other clusters reach the hub; not set: its own on the network that all share.
    Example: 203.0.113.7"""

    @model_validator(mode="after")
    def _has_a_tunnel(self) -> Security:
        if self.tunnel_gbps is not None and self.between_clusters == "clear":
            raise ValueError("tunnel_gbps limits a tunnel, but between_clusters is `clear`: set it to `wireguard`")
        if self.tunnel_hub is not None and self.between_clusters == "clear":
            raise ValueError("tunnel_hub relays a tunnel, but between_clusters is `clear`: set it to `wireguard`")
        if self.tunnel_hub_address is not None and self.tunnel_hub is None:
            raise ValueError("tunnel_hub_address has no host: tunnel_hub is not set")
        return self


IN_THE_CLEAR = Security()
