"""The facts of one source about one RDMA port, in the words of ibstat."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holmes_core.records.devices import Gid, GidType, PciLink
from prober.asking.numbers import guid
from prober.asking.plausible_values import is_name

WHOLE_DEVICE = 0  # the port number of facts that hold for all ports of a device

_STATES = {
    "nop": "No state change",
    "down": "Down",
    "init": "Initializing",
    "initializing": "Initializing",
    "initialize": "Initializing",
    "armed": "Armed",
    "active": "Active",
    "activedefer": "Active deferred",
}
_PHYS_STATES = {
    "sleep": "Sleep",
    "polling": "Polling",
    "disabled": "Disabled",
    "disable": "Disabled",
    "portconfigurationtraining": "PortConfigurationTraining",
    "training": "PortConfigurationTraining",
    "linkup": "LinkUp",
    "linkerrorrecovery": "LinkErrorRecovery",
    "linkerrorrecover": "LinkErrorRecovery",
    "phytest": "Phy Test",
}
_LINK_LAYERS = {"infiniband": "InfiniBand", "ethernet": "Ethernet", "unknown": "Unknown", "unspecified": "Unknown"}


@dataclass(frozen=True)
class PortFacts:
    """Facts about a port. None is not known.

    `netdev_up` is the state of its netdev, from ibdev2netdev. With `netdev_elsewhere` the netdev is in another network
    namespace. With `not_infiniband` the source would have printed more for an InfiniBand port. With `before_roce` the
    tool is older than RoCE, and knows only InfiniBand.
    """

    device: str
    port: int
    link_layer: str | None = None
    not_infiniband: bool | None = None
    before_roce: bool | None = None
    protocol: str | None = None
    transport: str | None = None
    vendor_id: str | None = None
    node_type: str | None = None
    state: str | None = None
    phys_state: str | None = None
    rate_gbps: float | None = None
    netdev: str | None = None
    netdev_up: bool | None = None
    subnet_prefix: str | None = None
    sm_lid: int | None = None
    sm_guid: str | None = None
    lid: int | None = None
    driver: str | None = None
    firmware: str | None = None
    hca_type: str | None = None
    board_id: str | None = None
    node_guid: str | None = None
    sys_image_guid: str | None = None
    port_guid: str | None = None
    pci_address: str | None = None
    pci: PciLink | None = None
    numa_node: int | None = None
    active_mtu: int | None = None
    virtual_function: bool | None = None
    gid_unknown: bool | None = None
    netdev_elsewhere: bool | None = None
    gids: tuple[Gid, ...] = ()
    pkeys: tuple[int, ...] | None = None
    traffic_class: int | None = None
    effective_ber: float | None = None
    raw_ber: float | None = None
    fec: str | None = None
    counters: tuple[tuple[str, int], ...] = ()
    counter_growth: tuple[tuple[str, int], ...] | None = None


KeyReaders = Mapping[str, tuple[str, Callable[[str], Any]]]
"""The field of `PortFacts` for each key of a tool's output, and the function that reads its value."""


def with_value(port: PortFacts, readers: KeyReaders, key: str, value: str) -> PortFacts:
    """Return the port with the value of one line `key: value`. Ignore a key that has no reader."""
    if key not in readers:
        return port
    name, read = readers[key]
    return replace(port, **{name: read(value)})


def marked_if_old(ports: Sequence[PortFacts]) -> tuple[PortFacts, ...]:
    """Return the ports of one whole output, marked as `before_roce` if none has a link layer.

    A single block proves nothing, because it may be cut before that line.
    """
    if len(ports) < 2 or any(port.link_layer for port in ports):
        return tuple(ports)
    return tuple(replace(port, before_roce=True) for port in ports)


def state_word(text: str | None) -> str | None:
    """Return `Active` for `4: ACTIVE`, `PORT_ACTIVE (4)`, `ACTIVE`, or None for other text."""
    return _STATES.get(_letters(text).removeprefix("port"))


def phys_state_word(text: str | None) -> str | None:
    """Return `LinkUp` for `5: LinkUp`, `LINK_UP (5)`, `LINK_UP`, or None for other text."""
    return _PHYS_STATES.get(_letters(text))


def link_layer_word(text: str | None) -> str | None:
    """Return InfiniBand, Ethernet or Unknown, or None for other text."""
    return _LINK_LAYERS.get(_letters(text))


def _letters(text: str | None) -> str:
    return re.sub(r"[^a-z]", "", (text or "").lower())


def gid(index: int, text: str, version: str | None, netdev: str | None) -> Gid | None:
    """Return a GID entry, or None for zeros and other text. `version` is v1, v2 or the text of sysfs."""
    try:
        address = ipaddress.IPv6Address(text.strip())
    except ValueError:
        return None
    if int(address) == 0:
        return None
    mapped = address.ipv4_mapped
    return Gid(
        index=index,
        gid=address.exploded,
        type=_gid_type(version),
        ipv4=str(mapped) if mapped else None,
        netdev=netdev if netdev and is_name(netdev, of_netdev=True) else None,
    )


def _gid_type(version: str | None) -> GidType | None:
    """Return the type of a GID. For `IB/RoCE v1` the link layer decides later."""
    if version is None:
        return None
    return "RoCE v2" if "v2" in version.lower() else "RoCE v1" if "v1" in version.lower() else None


def subnet_prefix(gid_text: str | None) -> str | None:
    """Return the first half of a default GID, `fe80:0000:0000:0000`."""
    try:
        return ipaddress.IPv6Address((gid_text or "").strip()).exploded[:19]
    except ValueError:
        return None


def interface_id(gid_text: str | None) -> str | None:
    """Return the second half of a default GID, which is the port's GUID, or None for zeros."""
    try:
        return guid(ipaddress.IPv6Address((gid_text or "").strip()).exploded[20:])
    except ValueError:
        return None


def is_made_of_a_mac(port_guid: str | None) -> bool:
    """Return True if the GUID of an Ethernet port is derived from a global MAC address by the rule of IPv6.

    The rule puts ff:fe in the middle and sets the bit 0x02, which is clear in a vendor's GUID.
    """
    digits = (port_guid or "").replace(":", "")
    return len(digits) == 16 and digits[6:10] == "fffe" and bool(int(digits[:2], 16) & 0x02)
