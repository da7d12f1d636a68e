"""Bytes of TCP connections, interfaces and RDMA ports between two readings. Source: ss(8), proc_pid_net(5), sysfs."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from holmes_core.units import bytes_per_s_from_gbps, bytes_per_s_from_mbps

MAX_ENTRIES = 65_536
LANES = 4  # port_xmit_data counts words of four bytes; source: sysfs-class-infiniband
_SOCKET = re.compile(r"(?:ESTAB\s+)?\d{1,12}\s+\d{1,12}\s+(\S{3,80})\s+(\S{3,80})\s+users:\(\((.{1,4096})")
_PID = re.compile(r"pid=(\d{1,10}),")
_COUNT = re.compile(r"\bbytes_(sent|acked|received):(\d{1,19})\b")
_INTERFACE = re.compile(r"\s*([\w.@:-]{1,32}):\s*(\d{1,19})(?:\s+\d{1,19}){7}\s+(\d{1,19})\b")
_ADDRESS = re.compile(r"\d+:\s+([\w.-]{1,32})(?:@\S+)?\s+inet6?\s+([0-9a-fA-F.:]{2,45})/(\d{1,3})\b")
_NETDEV_FILE = re.compile(r"/sys/class/net/([\w.:-]{1,32})/(speed|operstate):(.{1,32})$")
_PORT_FILE = re.compile(r"/sys/class/infiniband/([\w.-]{1,64})/ports/(\d{1,3})/(?:counters/)?(\w{1,32}):(.{1,64})$")

Ends = tuple[str, str]
"""The local and the remote address of a connection, each with its port."""


class Traffic(NamedTuple):
    """Bytes sent and received."""

    sent: int
    received: int

    @property
    def total(self) -> int:
        """Bytes in both directions."""
        return self.sent + self.received

    def since(self, before: Traffic | None) -> Traffic:
        """Return the growth. A counter that was reset or wrapped counts from zero."""
        if before is None:
            return self
        pairs = ((self.sent, before.sent), (self.received, before.received))
        return Traffic(*(now - then if now >= then else now for now, then in pairs))


@dataclass(frozen=True)
class Connected:
    """A TCP connection of a training process, with its bytes during the watch."""

    pids: tuple[int, ...]
    local: str
    remote: str
    traffic: Traffic


@dataclass(frozen=True)
class Interface:
    """An interface with its addresses, its speed if the kernel knows it, and its bytes during the watch."""

    name: str
    addresses: tuple[ipaddress.IPv4Interface | ipaddress.IPv6Interface, ...]
    speed_bytes_per_s: float | None
    is_up: bool
    traffic: Traffic


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device, with its bytes during the watch, or None if its counters are not shown."""

    name: str
    is_active: bool
    link_layer: str
    rate_bytes_per_s: float | None
    traffic: Traffic | None


def parse_sockets(text: str) -> dict[Ends, Connected]:
    """Return the connections of `ss -tinp`, which prints two lines for each, with their bytes so far."""
    found: dict[Ends, Connected] = {}
    lines = text.splitlines()
    for line, below in itertools.pairwise(lines):
        match = _SOCKET.match(line)
        if match and len(found) < MAX_ENTRIES:
            counts = {name: int(value) for name, value in _COUNT.findall(below)} if below[:1].isspace() else {}
            traffic = Traffic(counts.get("sent", counts.get("acked", 0)), counts.get("received", 0))
            pids = tuple(sorted({int(pid) for pid in _PID.findall(match[3])}))
            ends = (_plain_end(match[1]), _plain_end(match[2]))
            found[ends] = Connected(pids, *ends, traffic)
    return found


def connections(first: Mapping[Ends, Connected], last: Mapping[Ends, Connected]) -> tuple[Connected, ...]:
    """Return the connections that are open at the end, with the bytes since the first reading."""
    return tuple(
        replace(each, traffic=each.traffic.since(first[ends].traffic if ends in first else None))
        for ends, each in last.items()
    )


def host_of(end: str) -> str:
    """Return the address of an end without its port."""
    return end.rpartition(":")[0]


def parse_interfaces(text: str) -> dict[str, Traffic]:
    """Return the counters of /proc/net/dev by interface."""
    matches = (_INTERFACE.match(line) for line in text.splitlines()[:MAX_ENTRIES])
    return {match[1]: Traffic(int(match[3]), int(match[2])) for match in matches if match}


def interfaces(addresses: str, speeds: str, first: str, last: str) -> tuple[Interface, ...]:
    """Return the interfaces of the last reading, from `ip -o addr`, sysfs and two readings of their counters."""
    before, after = parse_interfaces(first), parse_interfaces(last)
    facts = {(match[1], match[2]): match[3] for line in speeds.splitlines() if (match := _NETDEV_FILE.match(line))}
    named: dict[str, list[ipaddress.IPv4Interface | ipaddress.IPv6Interface]] = {}
    for name, address in _addresses(addresses):
        named.setdefault(name, []).append(address)
    return tuple(
        Interface(
            name=name,
            addresses=tuple(named.get(name, ())),
            speed_bytes_per_s=_speed(facts.get((name, "speed"))),
            is_up=facts.get((name, "operstate"), "unknown") in ("up", "unknown"),
            traffic=traffic.since(before.get(name)),
        )
        for name, traffic in after.items()
    )


def rdma_ports(about: str, first: str, last: str) -> tuple[RdmaPort, ...]:
    """Return the RDMA ports from their state and two readings of their counters."""
    facts, before, after = (_port_facts(text) for text in (about, first, last))
    return tuple(
        RdmaPort(
            name=name,
            is_active="ACTIVE" in known.get("state", ""),
            link_layer=known.get("link_layer", ""),
            rate_bytes_per_s=_port_rate(known.get("rate")),
            traffic=_port_traffic(before.get(name, {}), after.get(name, {})),
        )
        for name, known in facts.items()
    )


def _plain_end(end: str) -> str:
    address, _, port = end.rpartition(":")
    address = address.strip("[]").partition("%")[0].removeprefix("::ffff:")
    return f"{address}:{port}"


def _addresses(text: str) -> Iterator[tuple[str, ipaddress.IPv4Interface | ipaddress.IPv6Interface]]:
    for line in text.splitlines()[:MAX_ENTRIES]:
        if match := _ADDRESS.match(line):
            try:
                yield match[1], ipaddress.ip_interface(f"{match[2]}/{match[3]}")
            except ValueError:
                continue


def _speed(text: str | None) -> float | None:
    """Return the speed that sysfs shows in Mbit/s, or None for -1 and other text."""
    return bytes_per_s_from_mbps(int(text)) if text and re.fullmatch(r"[1-9][0-9]{0,8}", text) else None


def _port_facts(text: str) -> dict[str, dict[str, str]]:
    facts: dict[str, dict[str, str]] = {}
    for line in text.splitlines()[:MAX_ENTRIES]:
        if match := _PORT_FILE.match(line):
            facts.setdefault(f"{match[1]}/{match[2]}", {})[match[3]] = match[4]
    return facts


def _port_rate(text: str | None) -> float | None:
    """Return the rate of `400 Gb/sec (4X NDR)`."""
    match = re.match(r"(\d{1,5}(?:\.\d{1,3})?) Gb/sec", text or "")
    return bytes_per_s_from_gbps(float(match[1])) if match else None


def _port_traffic(before: Mapping[str, str], after: Mapping[str, str]) -> Traffic | None:
    names = ("port_xmit_data", "port_rcv_data")
    if not all(re.fullmatch(r"\d{1,20}", known.get(name, "")) for known in (before, after) for name in names):
        return None
    first, last = (Traffic(*(LANES * int(known[name]) for name in names)) for known in (before, after))
    return last.since(first)
