"""Network interfaces: names and addresses from `ip -j`, speed from ethtool."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from holmes_core.inventory import Netdev
from holmes_core.units import bytes_per_s_from_gbps, bytes_per_s_from_mbps
from prober.facts.question import Command, Output

ADDRESSES = Command("ip-addr", "ip -j addr show")
DEFAULT_ROUTE = Command("ip-route", "ip -j route show default")
SPEEDS = Command(
    "ethtool",
    'for d in /sys/class/net/*; do n=${d##*/}; [ "$n" = lo ] || { printf "== %s\\n" "$n"; ethtool "$n"; }; done',
)


def parse_speeds(output: Output) -> dict[str, float]:
    """Bytes per second by netdev, for those whose speed ethtool knows."""
    speeds = {}
    for block in re.split(r"^== ", output.text, flags=re.MULTILINE)[1:]:
        name = block.partition("\n")[0].strip()
        match = re.search(r"^\s*Speed:\s*(\d+)\s*Mb/s", block, flags=re.MULTILINE)
        if match:
            speeds[name] = bytes_per_s_from_mbps(float(match.group(1)))
    return speeds


def parse_addresses(
    output: Output, speeds: Mapping[str, float], pinned_gbps: Mapping[str, float]
) -> tuple[Netdev, ...]:
    """Netdevs of `ip -j addr`; `pinned_gbps` of hosts.yaml wins over ethtool's `speeds` (bytes/s)."""
    netdevs = []
    for entry in _json_list(output.text):
        name = entry.get("ifname")
        if isinstance(name, str):
            pinned = pinned_gbps.get(name)
            speed = speeds.get(name) if pinned is None else bytes_per_s_from_gbps(pinned)
            netdevs.append(_netdev(name, entry, speed))
    return tuple(netdevs)


def _netdev(name: str, entry: Mapping[str, Any], speed_bytes_per_s: float | None) -> Netdev:
    addresses = [
        f"{address['local']}/{address['prefixlen']}"
        for address in entry.get("addr_info", ())
        if address.get("family") == "inet" and "local" in address and "prefixlen" in address
    ]
    flags = entry.get("flags", ())
    return Netdev(
        name=name,
        up="UP" in flags and "NO-CARRIER" not in flags,
        mtu=entry.get("mtu"),
        addresses=tuple(addresses),
        speed_bytes_per_s=speed_bytes_per_s,
    )


def parse_default_route(output: Output) -> str | None:
    """The netdev of the default route, None if there is none."""
    for entry in _json_list(output.text):
        device = entry.get("dev")
        if entry.get("dst") == "default" and isinstance(device, str):
            return device
    return None


def _json_list(text: str) -> list[dict[str, Any]]:
    """The JSON list in an answer of `ip -j`, which may have warnings around it; empty if cut off or absent."""
    start, end = text.find("["), text.rfind("]")
    try:
        data = json.loads(text[start : end + 1]) if 0 <= start < end else []
    except json.JSONDecodeError:
        return []
    return [entry for entry in data if isinstance(entry, dict)]
