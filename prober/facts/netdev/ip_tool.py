"""Netdevs and their addresses, from `ip addr` and `ip link` in JSON or as text, and from ifconfig."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from holmes_core.records.devices import NetdevKind
from prober.asking.commands import Command
from prober.asking.json_list import json_list
from prober.asking.merge import by_key
from prober.asking.numbers import whole_number
from prober.asking.recording import Recorded
from prober.facts.netdev.partial_netdev import PartialNetdev

ADDRESSES = Command("ip -j addr show")
_NO_JSON = "case $code in 0|127) false;; esac"  # iproute2 before 4.14 and busybox have no -j
ADDRESSES_TEXT = Command("ip addr show", when=_NO_JSON)


def parse_ip(output: Recorded) -> tuple[PartialNetdev, ...]:
    """Return the netdevs of `ip addr` or `ip link`, with or without -j, -d, -o, -br and -s."""
    return tuple(
        _netdev(entry["ifname"], entry)
        for entry in json_list(output.plain) or _text_entries(output)
        if isinstance(entry.get("ifname"), str) and entry["ifname"]
    )


def _netdev(name: str, entry: Mapping[str, Any]) -> PartialNetdev:
    flags = entry.get("flags")
    words = [str(flag) for flag in flags] if isinstance(flags, list) else []
    mac, operstate, mtu = entry.get("address"), entry.get("operstate"), entry.get("mtu")
    by_state = {"UP": True, "DOWN": False}.get(str(operstate))
    return PartialNetdev(
        name=name,
        up="UP" in words and "NO-CARRIER" not in words if words else by_state,
        mtu=mtu if isinstance(mtu, int) else None,
        addresses=_addresses(entry, "inet"),
        ipv6_addresses=_addresses(entry, "inet6"),
        kind=_kind(entry),
        parent=_other_netdev(entry.get("link")),
        master=_other_netdev(entry.get("master")),
        mac=mac if isinstance(mac, str) else None,
        operstate=operstate.lower() if isinstance(operstate, str) else None,
        link_detected=False if "NO-CARRIER" in words else True if "LOWER_UP" in words else None,
        listed=True,
    )


def _other_netdev(name: object) -> str | None:
    """Return the name of a netdev in this namespace, or None for `if5`, which is in another namespace."""
    return name if isinstance(name, str) and name and not re.fullmatch(r"if\d+|NONE", name) else None


_LINK_LINE = re.compile(r"\d+: ([^\s:@]+)(?:@([^\s:]+))?: <([A-Z0-9_,-]*)>(?= )(.*)")
_ADDRESS_LINE = re.compile(r"\d+: ([^\s:@]+)(?:@\S+)?\s+(inet6? .*)")
# The label of an IPv4 address is or begins with the interface's name: `eth0:1`.
_LABEL = re.compile(
    r"^\s*inet .* scope (?:global|link|host|site|[0-9]+)"
    r"(?: (?:secondary|dynamic|noprefixroute|deprecated|tentative))* ([^\s:]+)(?::\S+)?\s*$"
)
_BRIEF_LINE = re.compile(r"([^\s:@]+)(?:@\S+)?\s+(UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT)((?:\s+\S+)*)\s*")


def _text_entries(output: Recorded) -> list[dict[str, Any]]:
    """Return the blocks of `ip addr` and `ip link` in the form of JSON. With -o, each address is one line."""
    entries: dict[str, dict[str, Any]] = {}
    entry: dict[str, Any] = {}
    for line in output.plain.replace("\\", "\n").split("\n")[:-1]:
        words = line.split()
        if match := _LINK_LINE.match(line):
            name, parent, flags, rest = match.groups()
            about = dict(zip(rest.split()[::2], rest.split()[1::2], strict=False))
            entry = entries.setdefault(name, {"ifname": name, "addr_info": []})
            entry |= {"flags": flags.split(","), "operstate": about.get("state"), "mtu": whole_number(about.get("mtu"))}
            entry |= {"link": parent} if parent and parent != "NONE" else {}
            entry |= {"master": about.get("master")}
        elif match := _ADDRESS_LINE.match(line):
            entry = entries.setdefault(match.group(1), {"ifname": match.group(1), "addr_info": []})
            _add_words(entry, match.group(2).split())
        elif any(word.startswith("-br") for word in output.words) and (match := _BRIEF_LINE.fullmatch(line)):
            entry = entries.setdefault(match.group(1), {"ifname": match.group(1), "addr_info": []})
            entry["operstate"] = match.group(2)
            for word in match.group(3).split():
                _add_words(entry, ["inet6" if ":" in word else "inet", word] if "/" in word else ["", ""])
        elif labelled := _LABEL.search(line):  # grep may have removed the block's first line
            name = labelled.group(1)
            _add_words(entries.setdefault(name, {"ifname": name, "addr_info": []}), words)
        elif len(words) > 1 and entry:
            _add_words(entry, words)
    return list(entries.values())


def _add_words(entry: dict[str, Any], words: Sequence[str]) -> None:
    """Add the facts of a line below the interface's first line to `entry`."""
    if words[0].startswith("link/"):
        entry |= {"link_type": words[0].removeprefix("link/"), "address": words[1]}
    elif words[0] in ("inet", "inet6"):
        local, _, length = words[1].partition("/")
        entry["addr_info"].append({"family": words[0], "local": local, "prefixlen": length or "32"})
    elif words[0] in _KINDS:
        entry["linkinfo"] = {"info_kind": words[0]}


_KINDS: dict[object, NetdevKind] = {
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


def _kind(entry: Mapping[str, Any]) -> NetdevKind | None:
    by_type: dict[object, NetdevKind] = {"infiniband": "ipoib", "loopback": "loopback"}
    about = entry.get("linkinfo")
    info = about.get("info_kind") if isinstance(about, Mapping) else None
    if kind := by_type.get(entry.get("link_type")) or _KINDS.get(info, "virtual" if info else None):
        return kind
    return "virtual" if entry.get("link") or entry.get("link_index") else None  # on top of another interface


_INTERFACES: dict[str, Callable[[str], object]] = {
    "inet": ipaddress.IPv4Interface,
    "inet6": ipaddress.IPv6Interface,
}


def _addresses(entry: Mapping[str, Any], family: str) -> tuple[str, ...]:
    found = []
    infos = entry.get("addr_info")
    for info in infos if isinstance(infos, list) else ():
        if isinstance(info, Mapping) and info.get("family") == family:
            address = f"{info.get('local')}/{info.get('prefixlen')}"
            if _accepts(_INTERFACES[family], address):
                found.append(address)
    return tuple(found)


def _accepts(make: Callable[[str], object], text: str) -> bool:
    """Return True if `make` accepts the text as an address or a network."""
    try:
        make(text)
    except ValueError:
        return False
    return True


def parse_ifconfig(output: Recorded) -> tuple[PartialNetdev, ...]:
    """Return the netdevs of ifconfig's blocks. `eth0:1` is another address of eth0."""
    netdevs: list[PartialNetdev] = []
    for line in output.whole_lines:
        if match := re.match(r"([^\s:]+)(?::\S+)?: flags=\d+<([A-Z_,0-9]*)>\s+mtu (\d{1,6})", line):
            flags = match.group(2).split(",")
            up = "UP" in flags and "RUNNING" in flags
            netdevs.append(
                PartialNetdev(
                    name=match.group(1),
                    up=up,
                    mtu=int(match.group(3)),
                    link_detected=("RUNNING" in flags) if "UP" in flags else None,
                    kind="loopback" if "LOOPBACK" in flags else None,
                    listed=True,
                )
            )
        elif match := re.match(r"([^\s:]+)(?::\S+)?\s+Link encap:(.*)", line):  # net-tools before 2.0
            kind: NetdevKind | None = "loopback" if "Loopback" in match.group(2) else None
            if match.group(1).startswith("ib"):
                kind = "ipoib"
            netdevs.append(PartialNetdev(name=match.group(1), kind=kind, listed=True))
        elif netdevs:
            netdevs[-1] = _with_ifconfig_line(netdevs[-1], line.strip())
    joined = by_key(
        netdevs,
        attrgetter("name"),
        lambda netdev, alias: netdev.model_copy(update={"addresses": (*netdev.addresses, *alias.addresses)}),
    )
    return tuple(joined.values())


def _with_ifconfig_line(netdev: PartialNetdev, text: str) -> PartialNetdev:
    if match := re.match(r"([A-Z ]*)\bMTU:(\d{1,6})\b", text):
        up = "UP" in text.split()
        running = "RUNNING" in text.split()
        seen = {"up": up and running, "mtu": int(match.group(2)), "link_detected": running if up else None}
        return netdev.model_copy(update=seen)
    if match := re.match(r"inet (?:addr:)?(\d+(?:\.\d+){3})\s.*?(?:netmask |Mask:)(\d+(?:\.\d+){3})", text):
        address = "/".join(match.groups())
        if not _accepts(ipaddress.IPv4Interface, address):
            return netdev
        interface = ipaddress.IPv4Interface(address)
        return netdev.model_copy(update={"addresses": (*netdev.addresses, interface.with_prefixlen)})
    if match := re.match(r"ether ([0-9a-f:]{17})\b", text):
        return netdev.model_copy(update={"mac": match.group(1)})
    return netdev.model_copy(update={"kind": "ipoib"}) if text.startswith("infiniband ") else netdev
