"""RDMA ports and devices as iproute2's `rdma` shows them, in JSON or as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from prober.asking.commands import Command
from prober.asking.json_list import json_list
from prober.asking.numbers import guid, whole_number
from prober.asking.recording import Recorded
from prober.facts.rdma.port_facts import WHOLE_DEVICE, PortFacts, phys_state_word, state_word

RDMA_LINK = Command("rdma -j link show", limited=True)
RDMA_DEV = Command("rdma -j dev show", limited=True)

_WITH_VALUE = [
    *("subnet_prefix", "lid", "sm_lid", "lmc", "state", "physical_state", "netdev", "netdev_index", "caps"),
    *("node_type", "protocol", "fw", "node_guid", "sys_image_guid", "adaptive-moderation"),
]
_OTHER_OBJECTS = ("stat", "res", "sys", "mon")  # `rdma statistic`, `resource`, `system`, `monitor`, or shorter


def parse_rdma(output: Recorded) -> tuple[PortFacts, ...]:
    """Return the ports of `rdma link`, or the devices (port WHOLE_DEVICE) of `rdma dev`."""
    if any(word.startswith(_OTHER_OBJECTS) for word in output.words[1:]):
        return ()
    entries = json_list(output.plain) or list(_text_entries(output))
    ports = [(port, entry.get("cut") is True) for entry in entries if (port := _facts(entry)) is not None]
    return tuple(port if output.columns_cut else _with_silence(port, cut) for port, cut in ports)


def _with_silence(port: PortFacts, cut: bool) -> PortFacts:
    """Return the port with the facts that missing words show. If the line's end is `cut`, later words may be lost.

    The kernel prints a lid for every InfiniBand port, 65535 before it has one, and for no other port. It prints a
    port's netdev if that is in the caller's network namespace. Source: Linux, drivers/infiniband/core/nldev.c,
    fill_port_info.
    """
    if port.state is None or {port.subnet_prefix, port.lid, port.sm_lid} != {None}:
        return port
    return replace(port, not_infiniband=True, netdev_elsewhere=True if port.netdev is None and not cut else None)


def _text_entries(output: Recorded) -> Iterator[dict[str, Any]]:
    """Yield lines such as `link mlx5_0/1 state ACTIVE ...` and `0: mlx5_0: node_type ca ...` in the form of JSON."""
    *lines, last = output.lines
    if not last.endswith(("ACTIVE", "DOWN", "LINK_UP", "DISABLED", "POLLING")):  # its last word may be cut
        last = last.rpartition(" ")[0] + " "
    for line in [*lines, last]:
        words = line.split()
        facts: dict[str, Any] = {word: words[at + 1] for at, word in enumerate(words[:-1]) if word in _WITH_VALUE}
        numbered = re.match(r"(?:\d+/\d+:|link)\s+(\S+)/(\d{1,9}):?\s", line)
        if numbered:
            yield {**facts, "ifname": numbered.group(1), "port": int(numbered.group(2)), "cut": line is last}
        elif match := re.match(r"\d+:\s+(\S+):\s", line):
            yield {**facts, "ifname": match.group(1)}


def _facts(entry: Mapping[str, Any]) -> PortFacts | None:
    def text(key: str) -> str | None:
        value = entry.get(key)
        return str(value) if isinstance(value, (str, int)) else None

    device, port = entry.get("ifname"), entry.get("port")
    if not isinstance(device, str) or not device:
        return None
    if "state" in entry and not isinstance(port, int):
        return None
    return PortFacts(
        device.partition("/")[0],
        port if isinstance(port, int) else WHOLE_DEVICE,
        link_layer=_link_layer(entry),
        protocol=text("protocol"),
        node_type=text("node_type"),
        state=state_word(text("state")),
        phys_state=phys_state_word(text("physical_state")),
        netdev=text("netdev"),
        subnet_prefix=text("subnet_prefix"),
        sm_lid=whole_number(text("sm_lid")),
        lid=whole_number(text("lid")),
        firmware=text("fw"),
        node_guid=guid(text("node_guid")),
        sys_image_guid=guid(text("sys_image_guid")),
    )


def _link_layer(entry: Mapping[str, Any]) -> str | None:
    """Return the link layer, which is not printed. Only InfiniBand ports have lids, only Ethernet ports a netdev."""
    if "lid" in entry or "sm_lid" in entry:
        return "InfiniBand"
    return "Ethernet" if "netdev" in entry else {"roce": "Ethernet", "ib": "InfiniBand"}.get(str(entry.get("protocol")))
