"""RDMA ports as the tools of infiniband-diags show them: ibstat, ibstatus, and sminfo of their subnet managers."""

from __future__ import annotations

import re
from dataclasses import replace

from prober.asking.commands import Command
from prober.asking.numbers import guid, number, whole_number
from prober.asking.recording import LINK_LAYER_ENDS, Recorded
from prober.facts.rdma.cut_headers import BlockForm, with_headers
from prober.facts.rdma.port_facts import (
    PortFacts,
    interface_id,
    link_layer_word,
    marked_if_old,
    phys_state_word,
    state_word,
    subnet_prefix,
)

IBSTAT = Command("ibstat", limited=True)
# It may ask where this user may write to umad, and virtual functions may not.
SMINFO = Command(
    'sminfo -C "$n" -P 1',
    each="/sys/class/infiniband/*",
    skip="hfi1* opap*",
    only='[ ! -e "$d/device/physfn" ] && grep -qs InfiniBand "$d/ports/1/link_layer" && '
    'grep -qs ACTIVE "$d/ports/1/state"',
    limited=True,
    when="[ -w /dev/infiniband/umad0 ] && command -v sminfo >/dev/null 2>&1",
)

_MASTER = re.compile(
    r"sminfo: sm lid (\d{1,5}) sm guid 0x([0-9a-f]{1,16}), activity count \d+ priority \d+ state 3 SMINFO_MASTER"
)
_FORM = BlockForm(
    device_line=r"CA:? '[^']+'$",
    port_line=r"Port \d+:$",
    device_header="CA '{}'",
    port_header="Port {}:",
    port_keys=frozenset(
        ("State", "Physical state", "Rate", "Base lid", "LMC", "SM lid", "Capability mask", "Port GUID", "Link layer")
    ),
)


def parse_ibstat(output: Recorded) -> tuple[PortFacts, ...]:
    """Ports of ibstat's blocks. A block that was cut off keeps the lines that are there."""
    named = [word for word in output.words[1:] if not word.startswith("-")]  # `ibstat mlx5_0 1`
    port = whole_number(named[1]) if len(named) > 1 else None
    ports: list[PortFacts] = []
    device: PortFacts | None = None
    inside_port = False
    for line in with_headers(output.lines_ending(*LINK_LAYER_ENDS), _FORM, named[0] if named else None, port):
        text = line.strip()
        key, _, value = (part.strip() for part in text.partition(":"))
        if match := re.match(r"CA:? '([^']+)'$", text):
            device, inside_port = PortFacts(match.group(1), 0), False
        elif device and (match := re.match(r"Port (\d{1,9}):$", text)):
            ports.append(replace(device, port=int(match.group(1))))
            inside_port = True
        elif device and inside_port:
            ports[-1] = _with_port_line(ports[-1], key, value)
        elif device:
            device = _with_device_line(device, key, value)
    return tuple(ports) if output.filtered else marked_if_old(ports)


def _with_device_line(device: PortFacts, key: str, value: str) -> PortFacts:
    if key == "CA type":
        return replace(device, hca_type=value or None)
    if key == "Firmware version":
        return replace(device, firmware=value or None)
    if key == "Node GUID":
        return replace(device, node_guid=guid(value))
    if key == "System image GUID":
        return replace(device, sys_image_guid=guid(value))
    return device


def _with_port_line(port: PortFacts, key: str, value: str) -> PortFacts:
    if key == "State":
        return replace(port, state=state_word(value))
    if key == "Physical state":
        return replace(port, phys_state=phys_state_word(value))
    if key == "Rate":
        return replace(port, rate_gbps=number(value))
    if key == "Base lid":
        return replace(port, lid=whole_number(value))
    if key == "SM lid":
        return replace(port, sm_lid=whole_number(value))
    if key == "Port GUID":
        return replace(port, port_guid=guid(value))
    if key == "Link layer":
        return replace(port, link_layer=link_layer_word(value))
    return port


def parse_ibstatus(output: Recorded) -> tuple[PortFacts, ...]:
    """Ports of ibstatus's blocks."""
    ports: list[PortFacts] = []
    for line in output.lines_ending(*LINK_LAYER_ENDS):
        key, _, value = (part.strip() for part in line.partition(":"))
        if match := re.match(r"Infiniband device '([^']+)' port (\d{1,9}) status$", key):
            ports.append(PortFacts(match.group(1), int(match.group(2))))
        elif ports:
            ports[-1] = _with_status_line(ports[-1], key, value)
    # A default GID is a subnet prefix only on InfiniBand.
    ports = [port if port.link_layer == "InfiniBand" else replace(port, subnet_prefix=None) for port in ports]
    return tuple(ports) if output.filtered else marked_if_old(ports)


def _with_status_line(port: PortFacts, key: str, value: str) -> PortFacts:
    if key == "default gid":
        prefix = subnet_prefix(value)
        unknown = True if value == "unknown" else None
        return replace(port, subnet_prefix=prefix, port_guid=interface_id(value), gid_unknown=unknown)
    if key == "base lid":
        return replace(port, lid=whole_number(value))
    if key == "sm lid":
        return replace(port, sm_lid=whole_number(value))
    if key == "state":
        return replace(port, state=state_word(value))
    if key == "phys state":
        return replace(port, phys_state=phys_state_word(value))
    if key == "rate":
        return replace(port, rate_gbps=number(value))
    if key == "link_layer":
        return replace(port, link_layer=link_layer_word(value))
    return port


def parse_sminfo(output: Recorded) -> tuple[PortFacts, ...]:
    """The port that `-C DEVICE -P PORT` of the command name, with its subnet's manager, if that is the master.

    Without them the tool chooses the port by itself, and does not say which. Source: infiniband-diags, sminfo(8).
    """
    device = re.search(r"(?:-C|--Ca)[ =]?([A-Za-z][\w-]*)(?=\s|$)", output.call)
    port = re.search(r"(?:-P|--Port)[ =]?([0-9]{1,3})(?=\s|$)", output.call)
    found = next((match for line in output.whole_lines if (match := _MASTER.fullmatch(line.strip()))), None)
    if not (device and port and found):
        return ()
    manager = guid(found.group(2).zfill(16))
    return (PortFacts(device.group(1), int(port.group(1)), sm_lid=int(found.group(1)), sm_guid=manager),)
