"""Routes of all tables, from `ip route`, `ip route show table all` and `ip rule`, in JSON or as text.

Rails that are routed at the leaf switch have their routes in separate tables, chosen by a rule or a VRF.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holmes_core.records.devices import Route
from prober.asking.commands import Command
from prober.asking.json_list import json_list
from prober.asking.numbers import whole_number
from prober.asking.recording import Recorded

_NO_JSON = "case $code in 0|127) false;; esac"  # iproute2 before 4.14 and busybox have no -j
ROUTES = Command("ip -j route show")
ROUTES_TEXT = Command("ip route show", when=_NO_JSON)
ALL_ROUTES = Command("ip -j route show table all")
ALL_ROUTES_TEXT = Command("ip route show table all", when=_NO_JSON)
RULES = Command("ip -j rule show")
RULES_TEXT = Command("ip rule show", when=_NO_JSON)

_MAIN = ("main", "254", "None")
_NEVER = ("local", "255")  # the host's own addresses
_TYPES = (
    *("unicast", "local", "broadcast", "multicast", "anycast", "unreachable", "prohibit", "blackhole", "throw"),
    "nat",
)


def parse_default_route(outputs: Iterable[Recorded]) -> str | None:
    """Return the netdev of the main table's IPv4 default route with the lowest metric, or None without one."""
    routes = []
    for entry in _entries(outputs):
        device, metric = entry.get("dev"), entry.get("metric", 0)
        is_default = entry.get("dst") == "default" and _table(entry) is None and not _is_ipv6(entry)
        if is_default and isinstance(device, str) and isinstance(metric, int):
            routes.append((metric, device))
    return min(routes, key=lambda route: route[0])[1] if routes else None


def parse_routes(outputs: Iterable[Recorded]) -> tuple[Route, ...]:
    """Return the routes of all tables in use that leave the host, without the main table's default routes."""
    known = list(outputs)
    tables = _tables_in_use(known)
    routes = []
    for entry in _entries(known):
        prefix, table = _prefix(entry), _table(entry)
        if prefix is None or entry.get("type", "unicast") != "unicast" or table in _NEVER:
            continue
        if table is not None and tables is not None and table not in tables:
            continue
        routes += [Route(prefix=prefix, netdev=device, table=table) for device in _netdevs(entry)]
    return tuple(dict.fromkeys(routes))


def _prefix(entry: Mapping[str, Any]) -> str | None:
    """Return the route's prefix, or None for the main table's default route, link-local, multicast and other text."""
    text = entry.get("dst")
    if text == "default":
        return None if _table(entry) is None else "::/0" if _is_ipv6(entry) else "0.0.0.0/0"
    try:
        network = ipaddress.ip_network(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if network is None or network.is_link_local or network.is_multicast else text


def _is_ipv6(entry: Mapping[str, Any]) -> bool:
    """Return True for a route with a preference or an IPv6 gateway, which only IPv6 routes have."""
    return "pref" in entry or ":" in str(entry.get("gateway", ""))


def _table(entry: Mapping[str, Any]) -> str | None:
    """Return the table's name or number, or None for the main table, which is not printed."""
    table = str(entry.get("table"))
    return None if table in _MAIN else table


def _netdevs(entry: Mapping[str, Any]) -> list[str]:
    """Return the route's netdev, or the netdevs of all its next hops."""
    hops = entry.get("nexthops")
    found = [entry, *(hops if isinstance(hops, list) else ())]
    devices = [hop.get("dev") for hop in found if isinstance(hop, Mapping)]
    return [device for device in devices if isinstance(device, str) and device]


def _tables_in_use(outputs: Iterable[Recorded]) -> set[str] | None:
    """Return the tables that rules name, or None if the rules are not known or VRFs choose."""
    tables: set[str] = set()
    for output in outputs:
        if output.tool == "ip" and _asks(output, "rule", "ru"):
            for entry in json_list(output.plain) or _text_rules(output):
                tables.add(str(entry.get("table")))
                if "l3mdev" in entry:
                    return None
    return tables or None


def _text_rules(output: Recorded) -> Iterator[dict[str, Any]]:
    """Yield the rules in lines such as `32765: from 10.1.0.5 lookup 101`."""
    for line in output.whole_lines:
        words = line.split()
        if "lookup" in words[:-1]:
            table = words[words.index("lookup") + 1]
            yield {"table": table} | ({"l3mdev": True} if table == "[l3mdev-table]" else {})


def _entries(outputs: Iterable[Recorded]) -> Iterator[dict[str, Any]]:
    """Yield the routes of `ip route`, from JSON or text. Only the command names the table of `show table N`."""
    for output in outputs:
        if output.tool == "ip" and not _asks(output, "rule", "ru"):
            asked = output.words[output.words.index("table") + 1 :][:1] if _asks(output, "table") else ()
            default = {"table": asked[0]} if asked and asked[0] != "all" else {}
            for entry in json_list(output.plain) or _text_routes(output):
                yield default | entry


def _asks(output: Recorded, *objects: str) -> bool:
    return bool(set(objects) & set(output.words))


def _text_routes(output: Recorded) -> Iterator[dict[str, Any]]:
    if not _asks(output, "route", "r", "ro"):
        return
    entry: dict[str, Any] = {}
    for line in output.whole_lines:
        words = line.split()
        if words[:1] == ["nexthop"] and entry:
            yield entry | _about(words)
            continue
        kind = words[0] if words and words[0] in _TYPES else "unicast"
        words = words[1:] if words and words[0] in _TYPES else words
        if words and not line.startswith((" ", "\t")):
            entry = {"dst": words[0], "type": kind, **_about(words)}
            if "dev" in entry:
                yield entry


def _about(words: list[str]) -> dict[str, Any]:
    """Return the facts in the words of a route, by the keys of the JSON."""
    about: dict[str, Any] = {"metric": 0}
    for word, value in itertools.pairwise(words):
        if word in ("dev", "table", "pref"):
            about[word] = value
        elif word == "via":
            about["gateway"] = value
        elif word == "metric":
            about["metric"] = whole_number(value)
    return about
