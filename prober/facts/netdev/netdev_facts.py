"""What one source says of one netdev, and the record of all that is known of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from holmes_core.records.inventory import BondSlave, Netdev, NetdevKind
from holmes_core.units import bytes_per_s_from_gbps, bytes_per_s_from_mbps

_VIRTUAL_NAMES = re.compile(r"(docker|br-|veth|virbr|cni|flannel|cali|tun|tap|ifb|dummy|sit|gre|ip6tnl|kube|vxlan|ovs)")
_PHYSICAL_NAMES = re.compile(r"(en[opsPx]|eth|em|p\d+p\d)\w*")


@dataclass(frozen=True)
class NetdevFacts:
    """Facts of a netdev; None where the source says nothing. Speeds in Mbit/s, as ethtool and sysfs give them."""

    name: str
    up: bool | None = None
    mtu: int | None = None
    addresses: tuple[str, ...] = ()
    ipv6_addresses: tuple[str, ...] = ()
    speed_mbps: float | None = None
    max_speed_mbps: float | None = None
    kind: NetdevKind | None = None
    driver: str | None = None
    firmware: str | None = None
    pci_address: str | None = None
    numa_node: int | None = None
    mac: str | None = None
    operstate: str | None = None
    link_detected: bool | None = None
    bond_slaves: tuple[BondSlave, ...] | None = None
    rp_filter: int | None = None
    arp_ignore: int | None = None
    arp_announce: int | None = None
    pfc_enabled_priorities: tuple[int, ...] | None = None
    trust: Literal["pcp", "dscp"] | None = None
    port_shown: bool | None = None


def kind_of(facts: NetdevFacts) -> NetdevKind | None:
    """What kind of interface it is; by its name only where no source says."""
    if facts.kind is not None:
        return facts.kind
    if facts.name == "lo":
        return "loopback"
    if _VIRTUAL_NAMES.match(facts.name):
        return "virtual"
    if re.match(r"bond\d", facts.name):
        return "bond"
    return None


def looks_physical(facts: NetdevFacts) -> bool:
    """A card of its own: so the kernel says, or, where it was not asked, the name and a tool that shows a port."""
    kind = kind_of(facts)
    if kind is not None:
        return kind in ("physical", "virtual function")
    return bool(_PHYSICAL_NAMES.fullmatch(facts.name)) and bool(facts.port_shown)


def netdev_record(facts: NetdevFacts, pinned_gbps: Mapping[str, float]) -> Netdev:
    """The record; a speed pinned in hosts.yaml wins over what the tools say."""
    pinned = pinned_gbps.get(facts.name)
    known = {
        name: value for name, value in vars(facts).items() if name not in ("speed_mbps", "max_speed_mbps", "port_shown")
    }
    measured = None if facts.speed_mbps is None else bytes_per_s_from_mbps(facts.speed_mbps)
    top = None if facts.max_speed_mbps is None else bytes_per_s_from_mbps(facts.max_speed_mbps)
    return Netdev.model_validate(
        {
            **known,
            "kind": kind_of(facts),
            "speed_bytes_per_s": measured if pinned is None else bytes_per_s_from_gbps(pinned),
            "max_speed_bytes_per_s": top,
        }
    )
