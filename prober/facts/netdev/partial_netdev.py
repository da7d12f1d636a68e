"""The facts of one source about a network interface, and the kind of interface that follows from them."""

from __future__ import annotations

import re

from holmes_core.records.devices import Netdev, NetdevKind
from holmes_core.units import bytes_per_s_from_mbps

_VIRTUAL_NAMES = re.compile(r"(docker|br-|veth|virbr|cni|flannel|cali|tun|tap|ifb|dummy|sit|gre|ip6tnl|kube|vxlan|ovs)")
_PHYSICAL_NAMES = re.compile(r"(en[bcopPsx]|eth|em|p\d+p|hsn|rail|net)\w*\d\w*")


class PartialNetdev(Netdev):
    """A netdev as one source shows it. Only the name is always known."""

    up: bool | None = None
    mtu: int | None = None
    addresses: tuple[str, ...] = ()
    speed_bytes_per_s: float | None = None
    listed: bool | None = None
    """True if a tool shows it that lists interfaces of all kinds."""
    port_shown: bool | None = None
    """True if a tool shows that the interface has a port for a cable."""


def speed_bytes_per_s(mbps: float | None) -> float | None:
    """Return the speed of `mbps` Mbit/s, or None for 0, -1 and -1 read as unsigned, which mean unknown."""
    return None if mbps is None or mbps <= 0 or mbps in (0xFFFF, 0xFFFFFFFF) else bytes_per_s_from_mbps(mbps)


def kind_of(netdev: PartialNetdev) -> NetdevKind | None:
    """Return the kind of the interface, from its name if no source gives it."""
    if netdev.kind is not None:
        return netdev.kind
    if netdev.name == "lo":
        return "loopback"
    if _VIRTUAL_NAMES.match(netdev.name):
        return "virtual"
    if re.match(r"bond\d", netdev.name):
        return "bond"
    return None


def looks_physical(netdev: PartialNetdev) -> bool:
    """Return True for a card, by the kernel, or if that is not known by a port or by the name."""
    kind = kind_of(netdev)
    if kind is not None:
        return kind in ("physical", "virtual function")
    return bool(netdev.port_shown) or (bool(netdev.listed) and bool(_PHYSICAL_NAMES.fullmatch(netdev.name)))
