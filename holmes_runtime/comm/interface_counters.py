"""Byte counters of this host's network interfaces, by interface name."""

from __future__ import annotations

from pathlib import Path

from holmes_runtime.config.rank_metrics import ByteCounters

NET_DEV = Path("/proc/net/dev")


def parse_net_dev(text: str) -> dict[str, ByteCounters]:
    """Byte counters per interface from the text of /proc/net/dev (two header lines; bytes are columns 1 and 9)."""
    counters = {}
    for line in text.splitlines()[2:]:
        name, _, columns = line.partition(":")
        values = columns.split()
        counters[name.strip()] = ByteCounters(sent_bytes=int(values[8]), received_bytes=int(values[0]))
    return counters


def read_byte_counters() -> dict[str, ByteCounters]:
    """Byte counters of this host's interfaces; empty where the system keeps no /proc/net/dev."""
    return parse_net_dev(NET_DEV.read_text()) if NET_DEV.exists() else {}


def counters_increase(before: dict[str, ByteCounters], after: dict[str, ByteCounters]) -> dict[str, ByteCounters]:
    """Per interface, the increase between two readings; interfaces that came or went meanwhile are left out."""
    return {name: reading.since(before[name]) for name, reading in after.items() if name in before}
