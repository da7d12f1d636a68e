"""Priority flow control of netdevs, from mlnx_qos and iproute2's dcb."""

from __future__ import annotations

import re

from prober.asking.commands import Command
from prober.asking.json_list import json_list
from prober.asking.recording import Recorded
from prober.facts.netdev.partial_netdev import PartialNetdev

_RDMA_NETDEVS = "/sys/class/infiniband/*/device/net/*"
MLNX_QOS = Command('mlnx_qos -i "$n"', each=_RDMA_NETDEVS, limited=True, when="command -v mlnx_qos >/dev/null 2>&1")
DCB = Command(
    'dcb -j pfc show dev "$n"',
    each=_RDMA_NETDEVS,
    limited=True,
    when="! command -v mlnx_qos >/dev/null 2>&1 && command -v dcb >/dev/null 2>&1",
)


def parse_mlnx_qos(output: Recorded) -> tuple[PartialNetdev, ...]:
    """Return the netdev of `-i` with its trust state and enabled priorities."""
    name = re.search(r"(?:-i|--interface)[ =]([^\s|;<>]+)", output.call)
    trust = re.search(r"^Priority trust state: (pcp|dscp)$", output.plain, flags=re.MULTILINE)
    row = re.search(
        r"^PFC configuration:\n\s+priority((?:\s+\d)+)\s*\n\s+enabled((?:\s+[01])+)\s*\n",
        output.plain,
        flags=re.MULTILINE,
    )
    if not name or not (trust or row):
        return ()
    priorities = None
    if row and len(row.group(1).split()) == len(row.group(2).split()):
        pairs = zip(row.group(1).split(), row.group(2).split(), strict=True)
        priorities = tuple(int(priority) for priority, enabled in pairs if enabled == "1")
    word = trust.group(1) if trust else None
    found = {"name": name.group(1), "pfc_enabled_priorities": priorities, "trust": word}
    return (PartialNetdev.model_validate(found),)


def parse_dcb(output: Recorded) -> tuple[PartialNetdev, ...]:
    """Return the netdev of `dcb pfc show dev NAME` with its enabled priorities, from text or JSON."""
    name = re.search(r"\bdev\s+([^\s|;<>]+)", output.call)
    if not name or "pfc" not in output.words:
        return ()
    entries = json_list("[" + output.plain.strip().strip("[]") + "]")
    states = entries[0].get("prio_pfc") if entries else None
    if isinstance(states, list):
        on = tuple(number for number, state in enumerate(states) if state in (True, "on"))
        return (PartialNetdev(name=name.group(1), pfc_enabled_priorities=on),)
    row = re.search(r"^[ \t]*prio-pfc((?: \d:(?:on|off)){8})[ \t]*$", output.plain, flags=re.MULTILINE)
    if not row:
        return ()
    on = tuple(int(word[0]) for word in row.group(1).split() if word.endswith(":on"))
    return (PartialNetdev(name=name.group(1), pfc_enabled_priorities=on),)
