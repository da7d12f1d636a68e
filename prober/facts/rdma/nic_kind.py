"""The kind of a port, from facts that tools print, facts that are missing, and names."""

from __future__ import annotations

import re
from collections.abc import Callable

from holmes_core.records.devices import Netdev, NicKind
from prober.facts.rdma.port_facts import PortFacts, interface_id, is_made_of_a_mac

_FULL_DEFAULT_PKEY = 0xFFFF  # the only P_Key of an Ethernet port
_AMAZON, _NO_VENDOR = "0x1d0f", "0x0000"


def kind_of(port: PortFacts, netdev: Netdev | None) -> NicKind:
    """Return the kind by vendor and transport, which overrule the link layer, by link layer, or by other facts."""
    for test, kind in _SPECIAL_KINDS:
        if test(port):
            return kind
    by_layer: dict[str | None, NicKind] = {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}
    if port.link_layer in by_layer:
        return by_layer[port.link_layer]
    if any(entry.type == "RoCE v2" for entry in port.gids) or port.protocol == "roce":
        return "RoCE"
    if port.protocol == "ib" or (netdev and netdev.kind == "ipoib"):
        return "InfiniBand"
    # RoCE has no subnet manager, and one P_Key.
    if port.sm_lid or (port.pkeys is not None and port.pkeys != (_FULL_DEFAULT_PKEY,)):
        return "InfiniBand"
    return _kind_by_silence(port, netdev) if port.link_layer is None else _kind_by_name(port) or "unknown"


def _kind_by_silence(port: PortFacts, netdev: Netdev | None) -> NicKind:
    """Return the kind that missing output shows, if no source gives a link layer."""
    never_managed = port.state == "Active" and port.sm_lid == 0  # only a subnet manager makes InfiniBand Active
    if port.not_infiniband or never_managed or is_made_of_a_mac(guid_of(port)) or _is_ethernet(netdev):
        return "RoCE"
    return _kind_by_name(port) or ("InfiniBand" if port.before_roce else "unknown")


def _is_ethernet(netdev: Netdev | None) -> bool:
    """Return True for an interface with an Ethernet address. Addresses of IPoIB are longer."""
    return netdev is not None and netdev.mac is not None and len(netdev.mac) == len("00:00:00:00:00:00")


_NAMES: tuple[tuple[str, NicKind], ...] = (
    (r"ib(?:[osx]|p\d|P\d)", "InfiniBand"),  # rdma-core names devices by link layer; P precedes the PCI domain
    (r"roce(?:[osx]|p\d|P\d)|(?:bnxt_re|ionic_|qedr|erdma_|mana_|hns_)\d", "RoCE"),
)
_NETDEV_NAMES: tuple[tuple[str, NicKind], ...] = (
    (r"ib(?:\d|[os]\d|p\d|P\d|x[0-9a-f])", "InfiniBand"),  # names by systemd and the kernel
    (r"(?:en[bcopPsx]|eth|em|p\d+p|bond|hsn)\w*\d", "RoCE"),
)


def _kind_by_name(port: PortFacts) -> NicKind | None:
    """Return the kind that a default name shows. Custom names (net1, rail0, rdma0) show none."""
    for names, name in ((_NAMES, port.device), (_NETDEV_NAMES, port.netdev)):
        for pattern, kind in names:
            if name and re.match(pattern, name):
                return kind
    return None


def _is_efa(port: PortFacts) -> bool:
    if port.vendor_id is not None or port.driver is not None:
        return port.vendor_id == _AMAZON or port.driver == "efa"
    return bool(re.match(r"(efa|rdmap)[_\d]", port.device))


def _is_soft_roce(port: PortFacts) -> bool:
    return (
        port.driver == "rdma_rxe"
        or bool(re.match(r"rxe", port.device))
        or (port.vendor_id == _NO_VENDOR and not re.match(r"siw", port.device))
    )


def _is_iwarp(port: PortFacts) -> bool:
    words = f"{port.protocol} {port.transport} {port.node_type}".lower()
    return bool(re.match(r"(siw|iwp)", port.device)) or bool(re.search(r"\b(iw|iwarp|rnic)\b", words))


def is_omni_path(port: PortFacts) -> bool:
    """Return True for device names of Omni-Path's drivers. It calls itself InfiniBand."""
    return port.device.startswith(("hfi1", "opap"))


_SPECIAL_KINDS: tuple[tuple[Callable[[PortFacts], bool], NicKind], ...] = (
    (_is_efa, "EFA"),
    (is_omni_path, "Omni-Path"),
    (_is_iwarp, "iWARP"),
    (_is_soft_roce, "SoftRoCE"),
)


def guid_of(port: PortFacts) -> str | None:
    """Return the port's GUID, or else the second half of its default GID."""
    return port.port_guid or next((interface_id(entry.gid) for entry in port.gids if entry.index == 0), None)
