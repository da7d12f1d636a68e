"""RDMA ports in /sys/class/infiniband. This source comes first, as it needs no tool and no root."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from holmes_core.records.devices import Gid
from prober.asking.commands import Command
from prober.asking.numbers import guid, number, whole_number
from prober.asking.pci_values import numa_node, pci_link, pci_path
from prober.asking.recording import Recorded
from prober.asking.sysfs_tree import Tree, read_tree
from prober.facts.rdma.port_facts import PortFacts, gid, link_layer_word, phys_state_word, state_word, subnet_prefix

GROWTH_INTERVAL_S = 10

_ROOT = "/sys/class/infiniband"
_DEVICE_FILES = [
    *("board_id", "fw_ver", "hca_type", "node_guid", "node_type", "sys_image_guid", "device/vendor"),
    *("device/numa_node", "device/current_link_speed", "device/current_link_width", "device/max_link_speed"),
    *("device/max_link_width", "tc/1/traffic_class"),
]
_PORT_FILES = ["link_layer", "state", "phys_state", "rate", "lid", "sm_lid"]
_COUNTER_FILES = [
    *("counters/link_downed", "counters/link_error_recovery", "counters/symbol_error"),
    *("counters/port_rcv_errors", "counters/local_link_integrity_errors"),
    *("counters/excessive_buffer_overrun_errors", "counters/port_xmit_discards", "hw_counters/out_of_sequence"),
    *("hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err", "hw_counters/rnr_nak_retry_err"),
    "hw_counters/roce_adp_retrans",
]

COUNTER_NAMES = tuple(file.partition("/")[2] for file in _COUNTER_FILES)
_PKEY_FILES = "pkeys/[0-9]"  # the first ten: reading one queries the card, and there may be 128

_ANY = f"has {_ROOT}/*"
LIST = Command(f"ls -l {_ROOT}")
ATTRIBUTES = Command(
    f"grep -Hs . {' '.join(f'{_ROOT}/*/{file}' for file in _DEVICE_FILES)}"
    f" {' '.join(f'{_ROOT}/*/ports/*/{file}' for file in _PORT_FILES)}",
    when=_ANY,
)
_READ_COUNTERS = f"grep -Hs . {' '.join(f'{_ROOT}/*/ports/*/{file}' for file in _COUNTER_FILES)}"
COUNTERS = Command(_READ_COUNTERS, when=_ANY)
COUNTERS_AGAIN = Command(_READ_COUNTERS, when=_ANY, after_s=GROWTH_INTERVAL_S)
GIDS = Command(f"grep -Hsv '^0000:0000:0000:0000:0000:0000:0000:0000$' {_ROOT}/*/ports/*/gids/*", when=_ANY)
GID_TYPES = Command(f"grep -Hs . {_ROOT}/*/ports/*/gid_attrs/types/* {_ROOT}/*/ports/*/gid_attrs/ndevs/*", when=_ANY)
PKEYS = Command(f"grep -Hsv 0x0000 {_ROOT}/*/ports/*/{_PKEY_FILES}", when=_ANY)
VIRTUAL = Command(f"ls -ld {_ROOT}/*/device/physfn {_ROOT}/*/device/driver", when=_ANY)


Growth = Mapping[tuple[str, int], tuple[tuple[str, int], ...]]


def counter_growth(outputs: Iterable[Recorded]) -> Growth:
    """Return counters that grew between the first and the last reading, with their growth, by device and port.

    Empty unless there are two readings. A counter that became smaller was reset, and shows nothing.
    """
    readings = [reading for output in outputs if "counters/" in output.text and (reading := _counter_reading(output))]
    if len(readings) < 2:
        return {}
    first, last = readings[0], readings[-1]
    return {
        port: tuple(
            (name, value - first[port][name])
            for name, value in counters.items()
            if value > first[port].get(name, value)
        )
        for port, counters in last.items()
        if port in first
    }


def _counter_reading(output: Recorded) -> dict[tuple[str, int], dict[str, int]]:
    ports: dict[tuple[str, int], dict[str, str]] = {}
    for match, value in read_tree([output]).matching(rf"{_ROOT}/([^/]+)/ports/(\d{{1,3}})/(.+)"):
        ports.setdefault((match.group(1), int(match.group(2))), {})[match.group(3)] = value
    readings = {port: dict(_counters(files)) for port, files in ports.items()}
    return {port: counters for port, counters in readings.items() if counters}


def parse_sysfs(tree: Tree, growth: Growth) -> tuple[PortFacts, ...]:
    """Return the ports of the tree, with the facts of their devices and the growth of their counters."""
    devices: dict[str, dict[str, str]] = {}
    ports: dict[tuple[str, int], dict[str, str]] = {}
    for match, value in tree.matching(rf"{_ROOT}/([^/]+)/(?:ports/(\d{{1,3}})/)?(.+)"):
        device, port, file = match.groups()
        if port is None:
            devices.setdefault(device, {})[file] = value
        else:
            ports.setdefault((device, int(port)), {})[file] = value
    return tuple(
        replace(_port(tree, device, port, devices.get(device, {}), files), counter_growth=growth.get((device, port)))
        for (device, port), files in ports.items()
    )


def _port(tree: Tree, device: str, port: int, about: Mapping[str, str], files: Mapping[str, str]) -> PortFacts:
    path = pci_path(tree.links.get(f"{_ROOT}/{device}", ""))
    link_layer = link_layer_word(files.get("link_layer"))
    gids = _gids(files)
    driver = tree.links.get(f"{_ROOT}/{device}/device/driver")
    netdevs = tree.listed.get(f"{_ROOT}/{device}/device/net", ())
    traffic_class = re.fullmatch(r"Global tclass=(\d{1,3})", about.get("tc/1/traffic_class", ""))  # of MLNX_OFED
    return PortFacts(
        device,
        port,
        link_layer=link_layer,
        vendor_id=about.get("device/vendor"),
        node_type=about.get("node_type", "").partition(":")[2].strip() or None,
        state=state_word(files.get("state")),
        phys_state=phys_state_word(files.get("phys_state")),
        rate_gbps=number(files.get("rate")),
        netdev=next((entry.netdev for entry in gids if entry.netdev), files.get("gid_attrs/ndevs/0"))
        or (netdevs[0] if len(netdevs) == 1 else None),
        subnet_prefix=subnet_prefix(files.get("gids/0")) if link_layer == "InfiniBand" else None,
        sm_lid=whole_number(files.get("sm_lid")),
        lid=whole_number(files.get("lid")),
        driver=driver.rpartition("/")[2] if driver else None,
        firmware=about.get("fw_ver"),
        hca_type=about.get("hca_type"),
        board_id=about.get("board_id"),
        node_guid=guid(about.get("node_guid")),
        sys_image_guid=guid(about.get("sys_image_guid")),
        pci_address=path[-1] if path else None,
        pci=pci_link(lambda file: about.get(f"device/{file}")),
        numa_node=numa_node(about.get("device/numa_node")),
        virtual_function=_is_virtual(tree, device),
        gids=gids,
        pkeys=_pkeys(files),
        traffic_class=int(traffic_class[1]) if traffic_class else None,
        counters=_counters(files),
    )


def _gids(files: Mapping[str, str]) -> tuple[Gid, ...]:
    entries = []
    for file, value in files.items():
        if match := re.fullmatch(r"gids/(\d{1,4})", file):
            index = match.group(1)
            version, netdev = files.get(f"gid_attrs/types/{index}"), files.get(f"gid_attrs/ndevs/{index}")
            if entry := gid(int(index), value, version, netdev):
                entries.append(entry)
    return tuple(sorted(entries, key=lambda entry: entry.index))


def _pkeys(files: Mapping[str, str]) -> tuple[int, ...] | None:
    """Return the P_Keys in order of index, with 0 for void entries, or None if none was read."""
    table: dict[int, int] = {}
    for file, value in files.items():
        match, key = re.fullmatch(r"pkeys/(\d{1,3})", file), whole_number(value)
        if match and key is not None and 0 < key <= 0xFFFF:
            table[int(match.group(1))] = key
    return tuple(table.get(index, 0) for index in range(max(table) + 1)) if table else None


def _counters(files: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    found = ((name, whole_number(files.get(file))) for name, file in zip(COUNTER_NAMES, _COUNTER_FILES, strict=True))
    return tuple((name, value) for name, value in found if value is not None)


def _is_virtual(tree: Tree, device: str) -> bool | None:
    path = f"{_ROOT}/{device}/device/physfn"
    if path in tree.links:
        return True
    return False if path in tree.absent else None
