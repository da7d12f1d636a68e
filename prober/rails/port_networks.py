"""The netdevs with an RDMA port's addresses, their networks, and the netdevs of the default route."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache

from holmes_core.records.devices import Netdev, Nic
from holmes_core.records.inventory import Host

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
MAX_PARSED = 65536  # addresses and networks kept parsed, because every rule reads them for the whole fleet


def netdevs_of(host: Host, nic: Nic) -> tuple[Netdev, ...]:
    """Return the netdevs of a port, with that of NCCL's GID first.

    The GID table names them, including VLANs and macvlans. If none has an address, those on the port's netdev count.
    """
    chosen = [entry.netdev for entry in nic.gids if entry.index == nic.gid_choice]
    names = dict.fromkeys([*chosen, nic.netdev, *(entry.netdev for entry in nic.gids)])
    by_name = {netdev.name: netdev for netdev in host.netdevs}
    own = [by_name[name] for name in names if name is not None and name in by_name]
    if nic.netdev and not any(has_address(netdev) for netdev in own):
        own += [netdev for netdev in host.netdevs if netdev.parent == nic.netdev and has_address(netdev)]
    return tuple(own)


def has_address(netdev: Netdev) -> bool:
    """Return True for an IPv4 address or an IPv6 address that is not link-local."""
    return bool(interfaces_of([netdev]))


def interfaces_of(netdevs: Iterable[Netdev]) -> frozenset[str]:
    """Return the IPv4 and IPv6 addresses with prefix length, without link-local ones, which every port has."""
    found: set[str] = set()
    for netdev in netdevs:
        found.update(netdev.addresses)
        found.update(text for text in netdev.ipv6_addresses if not _is_link_local(text))
    return frozenset(found)


@lru_cache(maxsize=MAX_PARSED)
def _is_link_local(interface: str) -> bool:
    return ipaddress.ip_interface(interface).ip.is_link_local


@lru_cache(maxsize=MAX_PARSED)
def parsed(network: str) -> Network:
    """Return the network of a prefix such as `10.2.0.0/16`."""
    return ipaddress.ip_network(network)


@lru_cache(maxsize=MAX_PARSED)
def network_of(interface: str) -> str:
    """Return `10.2.0.0/16` for `10.2.0.1/16`."""
    return str(ipaddress.ip_interface(interface).network)


def networks_of(netdevs: Iterable[Netdev]) -> frozenset[str]:
    """Return the networks of the netdevs' addresses."""
    return frozenset(network_of(text) for text in interfaces_of(netdevs))


_SYNTHETIC_DRIVERS = (None, "hv_netvsc", "virtio_net")


def is_fast_path(host: Host, nic: Nic) -> bool:
    """Return True for the accelerated function of a virtual machine, below a paravirtual netdev with the address.

    On Azure it carries no RoCE to other machines. Source: Linux, Documentation/networking/device_drivers/ethernet/
    microsoft/netvsc.rst; azure-rdma udev rules (mlx5_an0); boards of Microsoft's front end are called MSF.
    """
    if nic.kind != "RoCE":
        return False
    if re.match(r"mlx5_an\d", nic.device) or (nic.board_id or "").startswith("MSF"):
        return True
    by_name = {netdev.name: netdev for netdev in host.netdevs}
    own = by_name.get(nic.netdev or "")
    above = by_name.get(own.master or "") if own is not None and not own.addresses else None
    plain = above is not None and above.kind in (None, "physical") and re.match(r"eth\d|en[opsx]", above.name)
    return above is not None and bool(plain) and above.driver in _SYNTHETIC_DRIVERS


def default_route_netdevs(host: Host) -> frozenset[str]:
    """Return the netdev of the default route and all netdevs below it, such as bond members and a VLAN's parent."""
    below: dict[str, set[str]] = {}
    for netdev in host.netdevs:
        below.setdefault(netdev.name, set()).update(slave.name for slave in netdev.bond_slaves or ())
        if netdev.parent is not None:
            below[netdev.name].add(netdev.parent)
        if netdev.master is not None:
            below.setdefault(netdev.master, set()).add(netdev.name)
    found: set[str] = set()
    waiting = [host.default_route_netdev] if host.default_route_netdev else []
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += below.get(name, ())
    return frozenset(found)
