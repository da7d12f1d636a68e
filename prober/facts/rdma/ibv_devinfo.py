"""RDMA ports as ibv_devinfo shows them, with -v and without, old versions too."""

from __future__ import annotations

import re
from dataclasses import replace

from prober.asking.commands import Command
from prober.asking.numbers import guid, whole_number
from prober.asking.recording import LINK_LAYER_ENDS, Recorded
from prober.facts.rdma.cut_headers import BlockForm, with_headers
from prober.facts.rdma.port_facts import PortFacts, gid, link_layer_word, marked_if_old, phys_state_word, state_word

IBV_DEVINFO = Command("ibv_devinfo -v", limited=True)

_FORM = BlockForm(
    device_line=r"hca_id:",
    port_line=r"port:\s*\d",
    device_header="hca_id: {}",
    port_header="port: {}",
    port_keys=frozenset(
        (
            "state",
            "max_mtu",
            "active_mtu",
            "sm_lid",
            "port_lid",
            "port_lmc",
            "link_layer",
            "active_width",
            "active_speed",
        )
    ),
)


def parse_ibv_devinfo(output: Recorded) -> tuple[PortFacts, ...]:
    """Return the ports of ibv_devinfo's blocks. Drops ports without an `hca_id` line, unless `-d` names the device."""
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
    if key == "transport":
        return replace(device, transport=value.partition("(")[0].strip() or None)
    if key == "fw_ver":
        return replace(device, firmware=value or None)
    if key == "node_guid":
        return replace(device, node_guid=guid(value))
    if key == "sys_image_guid":
        return replace(device, sys_image_guid=guid(value))
    if key == "vendor_id":
        return replace(device, vendor_id=value.lower() or None)
    if key == "vendor_part_id" and device.vendor_id == "0x02c9" and whole_number(value):
        return replace(device, hca_type=f"MT{whole_number(value)}")
    if key == "board_id":
        return replace(device, board_id=value or None)
    return device


def _with_port_line(port: PortFacts, key: str, value: str) -> PortFacts:
    if key == "state":
        return replace(port, state=state_word(value))
    if key == "phys_state":
        return replace(port, phys_state=phys_state_word(value))
    if key == "active_mtu":
        return replace(port, active_mtu=whole_number(value))
    if key == "sm_lid":
        return replace(port, sm_lid=whole_number(value))
    if key == "port_lid":
        return replace(port, lid=whole_number(value))
    if key == "link_layer":
        return replace(port, link_layer=link_layer_word(value))
    if match := re.match(r"GID\[\s*(\d{1,4})\]$", key):
        text, _, version = value.partition(",")
        found = gid(int(match.group(1)), text, version or None, None)
        return replace(port, gids=(*port.gids, found)) if found else port
    return port


# Lane rates that the tool prints as a round code, in Gbit/s. Source: rdma-core libibverbs/examples/devinfo.c.
_LANE_GBPS = {
    "2.5": 2.5,
    "5.0": 5.0,
    "10.0": 10.0,
    "14.0": 14.0,
    "25.0": 25.0,
    "50.0": 50.0,
    "100.0": 100.0,
    "200.0": 200.0,
}


def _with_speed(port: PortFacts, width: int | None, value: str) -> PortFacts:
    """The rate, width times lane rate; void and left out unless the port is Active."""
    lane = _LANE_GBPS.get(value.partition(" ")[0])
    if port.state != "Active" or width is None or lane is None:
        return port
    return replace(port, rate_gbps=width * lane)
