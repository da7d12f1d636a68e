"""RDMA ports as ibv_devinfo shows them, with or without -v, also in old versions."""

from __future__ import annotations

import re
from dataclasses import replace

from prober.asking.commands import Command
from prober.asking.numbers import guid, whole_number
from prober.asking.recording import LINK_LAYER_ENDS, Recorded
from prober.facts.rdma.cut_headers import BlockForm, with_headers
from prober.facts.rdma.port_facts import (
    KeyReaders,
    PortFacts,
    gid,
    link_layer_word,
    marked_if_old,
    phys_state_word,
    state_word,
    with_value,
)

IBV_DEVINFO = Command("ibv_devinfo -v", limited=True)

_FORM = BlockForm(
    device_line=r"hca_id:",
    port_line=r"port:\s*\d",
    device_header="hca_id: {}",
    port_header="port: {}",
    port_keys=frozenset(
        (
            *("state", "max_mtu", "active_mtu", "sm_lid", "port_lid", "port_lmc", "link_layer"),
            *("active_width", "active_speed"),
        )
    ),
)
_DEVICE_KEYS: KeyReaders = {
    "transport": ("transport", lambda text: text.partition("(")[0].strip() or None),
    "fw_ver": ("firmware", lambda text: text or None),
    "node_guid": ("node_guid", guid),
    "sys_image_guid": ("sys_image_guid", guid),
    "vendor_id": ("vendor_id", lambda text: text.lower() or None),
    "board_id": ("board_id", lambda text: text or None),
}
_PORT_KEYS: KeyReaders = {
    "state": ("state", state_word),
    "phys_state": ("phys_state", phys_state_word),
    "active_mtu": ("active_mtu", whole_number),
    "sm_lid": ("sm_lid", whole_number),
    "port_lid": ("lid", whole_number),
    "link_layer": ("link_layer", link_layer_word),
}


def parse_ibv_devinfo(output: Recorded) -> tuple[PortFacts, ...]:
    """Return the ports of ibv_devinfo's blocks. Drop ports without an `hca_id` line, unless `-d` names the device."""
    options = " ".join(output.words)
    named = re.search(r"\s(?:-d|--ib-dev)[\s=]*([\w.-]+)", options, re.ASCII)
    asked = re.search(r"\s(?:-i|--ib-port)[\s=]*([0-9]{1,3})\b", options)
    device: PortFacts | None = None
    ports: list[PortFacts] = []
    inside_port = False
    width = None
    lines = output.lines_ending(*LINK_LAYER_ENDS)
    port = int(asked.group(1)) if asked else None
    for line in with_headers(lines, _FORM, named.group(1) if named else None, port):
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "hca_id":
            device, inside_port = (PortFacts(value, 0) if value else None), False
        elif key == "port" and device and (number := whole_number(value)) is not None:
            ports.append(replace(device, port=number))
            inside_port, width = True, None
        elif key == "active_width":
            match = re.match(r"(\d{1,2})X", value)
            width = int(match.group(1)) if match else None
        elif inside_port and key == "active_speed":
            ports[-1] = _with_speed(ports[-1], width, value)
        elif inside_port:
            ports[-1] = _with_port_line(ports[-1], key, value)
        elif device:
            device = _with_device_line(device, key, value)
    return tuple(ports) if output.filtered else marked_if_old(ports)


def _with_device_line(device: PortFacts, key: str, value: str) -> PortFacts:
    if key == "vendor_part_id" and device.vendor_id == "0x02c9" and whole_number(value):
        return replace(device, hca_type=f"MT{whole_number(value)}")
    return with_value(device, _DEVICE_KEYS, key, value)


def _with_port_line(port: PortFacts, key: str, value: str) -> PortFacts:
    if match := re.match(r"GID\[\s*(\d{1,4})\]$", key):
        text, _, version = value.partition(",")
        found = gid(int(match.group(1)), text, version or None, None)
        return replace(port, gids=(*port.gids, found)) if found else port
    return with_value(port, _PORT_KEYS, key, value)


# Gbit/s of a lane, which the tool prints rounded. Source: rdma-core libibverbs/examples/devinfo.c.
_LANE_GBPS = ("2.5", "5.0", "10.0", "14.0", "25.0", "50.0", "100.0", "200.0")


def _with_speed(port: PortFacts, width: int | None, value: str) -> PortFacts:
    """Return the port with its rate, width times lane rate, which is void unless the port is Active."""
    lane = value.partition(" ")[0]
    if port.state != "Active" or width is None or lane not in _LANE_GBPS:
        return port
    return replace(port, rate_gbps=width * float(lane))
