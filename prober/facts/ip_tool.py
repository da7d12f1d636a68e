"""Netdevs, addresses and the default route: `ip -j addr`, `ip -j link`, `ip -j route`, and ifconfig."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from holmes_core.inventory import NetdevKind, Route
from prober.facts.json_list import json_list
from prober.facts.netdev_facts import NetdevFacts
from prober.facts.question import Command
from prober.recording import Recorded

ADDRESSES = Command("ip -j addr show")
ROUTES = Command("ip -j route show")


def parse_ip(output: Recorded) -> tuple[NetdevFacts, ...]:
    """Netdevs of `ip -j addr` or `ip -j link`."""
    return tuple(
        _netdev(entry["ifname"], entry)
        for entry in json_list(output.plain)
        if isinstance(entry.get("ifname"), str) and entry["ifname"] and "flags" in entry
    )


def _netdev(name: str, entry: Mapping[str, Any]) -> NetdevFacts:
    flags = entry.get("flags")
    words = [str(flag) for flag in flags] if isinstance(flags, list) else []
    mac, operstate, mtu = entry.get("address"), entry.get("operstate"), entry.get("mtu")
    return NetdevFacts(
        name,
        up="UP" in words and "NO-CARRIER" not in words,
        mtu=mtu if isinstance(mtu, int) else None,
        addresses=_addresses(entry, "inet"),
        ipv6_addresses=_addresses(entry, "inet6"),
        kind=_kind(entry),
        mac=mac if isinstance(mac, str) else None,
        operstate=operstate.lower() if isinstance(operstate, str) else None,
        link_detected=False if "NO-CARRIER" in words else True if "LOWER_UP" in words else None,
        port_shown=True,
    )


def _kind(entry: Mapping[str, Any]) -> NetdevKind | None:
    by_type: dict[object, NetdevKind] = {"infiniband": "ipoib", "loopback": "loopback"}
    about = entry.get("linkinfo")
    by_info: dict[object, NetdevKind] = {
        "bond": "bond",
        "vlan": "vlan",
        "bridge": "bridge",
        "veth": "virtual",
        "macvlan": "virtual",
        "ipvlan": "virtual",
        "vxlan": "virtual",
        "dummy": "virtual",
        "tun": "virtual",
    }
    info = about.get("info_kind") if isinstance(about, Mapping) else None
    return by_type.get(entry.get("link_type")) or by_info.get(info)


def _addresses(entry: Mapping[str, Any], family: str) -> tuple[str, ...]:
    found = []
    infos = entry.get("addr_info")
    for info in infos if isinstance(infos, list) else ():
        if isinstance(info, Mapping) and info.get("family") == family:
            address = f"{info.get('local')}/{info.get('prefixlen')}"
            if _is_interface(address):
                found.append(address)
    return tuple(found)


def _is_interface(address: str) -> bool:
    try:
        ipaddress.ip_interface(address)
    except ValueError:
        return False
    return True


def parse_default_route(outputs: Iterable[Recorded]) -> str | None:
    """The netdev of the default route with the lowest metric, None if there is none."""
    routes = []
    for output in outputs:
        if output.tool == "ip":
            for entry in json_list(output.plain):
                device, metric = entry.get("dev"), entry.get("metric", 0)
                if entry.get("dst") == "default" and isinstance(device, str) and isinstance(metric, int):
                    routes.append((metric, device))
    return min(routes, key=lambda route: route[0])[1] if routes else None


def parse_routes(outputs: Iterable[Recorded]) -> tuple[Route, ...]:
    """The IPv4 routes that are not the default one, in order."""
    routes = []
    for output in outputs:
        for entry in json_list(output.plain) if output.tool == "ip" else ():
            prefix, device = entry.get("dst"), entry.get("dev")
            if isinstance(prefix, str) and isinstance(device, str) and _is_network(prefix):
                routes.append(Route(prefix=prefix, netdev=device))
    return tuple(dict.fromkeys(routes))


def _is_network(prefix: str) -> bool:
    try:
        ipaddress.IPv4Network(prefix)
    except ValueError:
        return False
    return True


def parse_ifconfig(output: Recorded) -> tuple[NetdevFacts, ...]:
    """Netdevs of ifconfig's blocks."""
    netdevs: list[NetdevFacts] = []
    for line in output.whole_lines:
        if match := re.match(r"(\S+?): flags=\d+<([A-Z_,0-9]*)>\s+mtu (\d{1,6})", line):
            flags = match.group(2).split(",")
            up = "UP" in flags and "RUNNING" in flags
            netdevs.append(
                NetdevFacts(
                    match.group(1),
                    up=up,
                    mtu=int(match.group(3)),
                    link_detected=("RUNNING" in flags) if "UP" in flags else None,
                    kind="loopback" if "LOOPBACK" in flags else None,
                    port_shown=True,
                )
            )
        elif netdevs:
            netdevs[-1] = _with_ifconfig_line(netdevs[-1], line.strip())
    return tuple(netdevs)


def _with_ifconfig_line(netdev: NetdevFacts, text: str) -> NetdevFacts:
    if match := re.match(r"inet (\d+(?:\.\d+){3})\s+netmask (\d+(?:\.\d+){3})", text):
        if not _is_interface("/".join(match.groups())):
            return netdev
        interface = ipaddress.ip_interface("/".join(match.groups()))
        return replace(netdev, addresses=(*netdev.addresses, interface.with_prefixlen))
    if match := re.match(r"ether ([0-9a-f:]{17})\b", text):
        return replace(netdev, mac=match.group(1))
    return replace(netdev, kind="ipoib") if text.startswith("infiniband ") else netdev
