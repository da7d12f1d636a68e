"""RDMA ports as ibstat, ibstatus and sminfo of infiniband-diags show them."""

from __future__ import annotations

import re
from dataclasses import replace

from prober.asking.commands import Command
from prober.asking.numbers import guid, number, whole_number
from prober.asking.recording import LINK_LAYER_ENDS, Recorded
from prober.facts.rdma.cut_headers import BlockForm, with_headers
from prober.facts.rdma.port_facts import (
    KeyReaders,
    PortFacts,
    interface_id,
    link_layer_word,
    marked_if_old,
    phys_state_word,
    state_word,
    subnet_prefix,
    with_value,
)

IBSTAT = Command("ibstat", limited=True)
# It needs write access to umad, and does not work with virtual functions.
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


_DEVICE_KEYS: KeyReaders = {
    "CA type": ("hca_type", lambda text: text or None),
    "Firmware version": ("firmware", lambda text: text or None),
    "Node GUID": ("node_guid", guid),
    "System image GUID": ("sys_image_guid", guid),
}
_PORT_KEYS: KeyReaders = {
    "State": ("state", state_word),
    "Physical state": ("phys_state", phys_state_word),
    "Rate": ("rate_gbps", number),
    "Base lid": ("lid", whole_number),
    "SM lid": ("sm_lid", whole_number),
    "Port GUID": ("port_guid", guid),
    "Link layer": ("link_layer", link_layer_word),
}
_STATUS_KEYS: KeyReaders = {
    "base lid": ("lid", whole_number),
    "sm lid": ("sm_lid", whole_number),
    "state": ("state", state_word),
    "phys state": ("phys_state", phys_state_word),
    "rate": ("rate_gbps", number),
    "link_layer": ("link_layer", link_layer_word),
}


def parse_ibstat(output: Recorded) -> tuple[PortFacts, ...]:
    """Return the ports of ibstat's blocks. A block that is cut off keeps its lines."""
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
            ports[-1] = with_value(ports[-1], _PORT_KEYS, key, value)
        elif device:
            device = with_value(device, _DEVICE_KEYS, key, value)
    return tuple(ports) if output.filtered else marked_if_old(ports)


def parse_ibstatus(output: Recorded) -> tuple[PortFacts, ...]:
    """Return the ports of ibstatus's blocks."""
    ports: list[PortFacts] = []
    for line in output.lines_ending(*LINK_LAYER_ENDS):
        key, _, value = (part.strip() for part in line.partition(":"))
        if match := re.match(r"Infiniband device '([^']+)' port (\d{1,9}) status$", key):
            ports.append(PortFacts(match.group(1), int(match.group(2))))
        elif ports and key == "default gid":
            unknown = True if value == "unknown" else None
            prefix, own_guid = subnet_prefix(value), interface_id(value)
            ports[-1] = replace(ports[-1], subnet_prefix=prefix, port_guid=own_guid, gid_unknown=unknown)
        elif ports:
            ports[-1] = with_value(ports[-1], _STATUS_KEYS, key, value)
    # A default GID is a subnet prefix only on InfiniBand.
    ports = [port if port.link_layer == "InfiniBand" else replace(port, subnet_prefix=None) for port in ports]
    return tuple(ports) if output.filtered else marked_if_old(ports)


def parse_sminfo(output: Recorded) -> tuple[PortFacts, ...]:
    """Return the port of `-C DEVICE -P PORT` in the command with its subnet manager, if that is the master.

    Without these options the tool chooses a port and does not print it. Source: infiniband-diags, sminfo(8).
    """
    device = re.search(r"(?:-C|--Ca)[ =]?([A-Za-z][\w-]*)(?=\s|$)", output.call)
    port = re.search(r"(?:-P|--Port)[ =]?([0-9]{1,3})(?=\s|$)", output.call)
    found = next((match for line in output.whole_lines if (match := _MASTER.fullmatch(line.strip()))), None)
    if not (device and port and found):
        return ()
    manager = guid(found.group(2).zfill(16))
    return (PortFacts(device.group(1), int(port.group(1)), sm_lid=int(found.group(1)), sm_guid=manager),)
