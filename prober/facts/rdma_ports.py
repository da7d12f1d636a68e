"""RDMA ports: sysfs first, then ibstat; netdevs of ports from sysfs, then ibdev2netdev. Merged by device and port."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from holmes_core.inventory import Nic, NicKind
from prober.facts.question import Command, Output

_PORT_FILES = ("link_layer", "state", "phys_state", "rate", "sm_lid", "gids/0", "gid_attrs/ndevs/0")

SYSFS = Command(
    "sysfs-infiniband", "grep -Hs . " + " ".join(f"/sys/class/infiniband/*/ports/*/{file}" for file in _PORT_FILES)
)
IBSTAT = Command("ibstat", "ibstat")
IBDEV2NETDEV = Command("ibdev2netdev", "ibdev2netdev")

_STATES = {"ACTIVE": "Active", "DOWN": "Down", "INIT": "Initializing", "ARMED": "Armed"}


@dataclass(frozen=True)
class PortFacts:
    """What one source says of one port; None where it says nothing."""

    device: str
    port: int
    link_layer: str | None = None
    state: str | None = None
    phys_state: str | None = None
    rate_gbps: float | None = None
    netdev: str | None = None
    sm_lid: int | None = None
    subnet_prefix: str | None = None


def parse_sysfs(output: Output) -> tuple[PortFacts, ...]:
    """Ports of `grep -H` over /sys/class/infiniband: lines `path:value`, any other line left out."""
    found: dict[tuple[str, int], dict[str, str]] = {}
    for line in output.text.splitlines():
        match = re.match(r"/sys/class/infiniband/([^/]+)/ports/(\d+)/([^:]+):(.*)$", line)
        if match:
            device, port, file, value = match.groups()
            found.setdefault((device, int(port)), {})[file] = value.strip()
    return tuple(_from_sysfs(device, port, files) for (device, port), files in found.items())


def _from_sysfs(device: str, port: int, files: dict[str, str]) -> PortFacts:
    state = files.get("state", "").partition(":")[2].strip()
    gid = files.get("gids/0", "")
    return PortFacts(
        device=device,
        port=port,
        link_layer=files.get("link_layer"),
        state=_STATES.get(state, state.capitalize()) or None,
        phys_state=files.get("phys_state", "").partition(":")[2].strip() or None,
        rate_gbps=_number(files.get("rate", "")),
        netdev=files.get("gid_attrs/ndevs/0"),
        sm_lid=_lid(files.get("sm_lid")),
        subnet_prefix=gid[:19] if files.get("link_layer") == "InfiniBand" and len(gid) == 39 else None,
    )


def parse_ibstat(output: Output) -> tuple[PortFacts, ...]:
    """Ports of ibstat's blocks. A block that was cut off keeps the lines that are there."""
    ports: list[PortFacts] = []
    device, inside_port = "", False
    for line in output.text.splitlines():
        text = line.strip()
        if match := re.match(r"CA '(.+)'$", text):
            device, inside_port = match.group(1), False
        elif device and (match := re.match(r"Port (\d+):$", text)):
            ports.append(PortFacts(device, int(match.group(1))))
            inside_port = True
        elif inside_port and ":" in text:
            key, _, value = text.partition(":")
            ports[-1] = _with_ibstat_line(ports[-1], key.strip(), value.strip())
    return tuple(ports)


def _with_ibstat_line(port: PortFacts, key: str, value: str) -> PortFacts:
    if key == "State":
        return replace(port, state=value or None)
    if key == "Physical state":
        return replace(port, phys_state=value or None)
    if key == "Rate":
        return replace(port, rate_gbps=_number(value))
    if key == "SM lid":
        return replace(port, sm_lid=_lid(value))
    if key == "Link layer":
        return replace(port, link_layer=value or None)
    return port


def parse_ibdev2netdev(output: Output) -> tuple[PortFacts, ...]:
    """Netdevs of ports, from lines such as `mlx5_0 port 1 ==> ib0 (Up)`."""
    pattern = r"^(\S+) port (\d+) ==> (\S+) \((?:Up|Down)\)"
    return tuple(
        PortFacts(device, int(port), netdev=netdev)
        for device, port, netdev in re.findall(pattern, output.text, flags=re.MULTILINE)
    )


def merge(sources: Iterable[tuple[PortFacts, ...]]) -> tuple[Nic, ...]:
    """One Nic a port: each fact from the first source that has it. Devices in order of their number, not as text."""
    merged: dict[tuple[str, int], PortFacts] = {}
    for facts in sources:
        for port in facts:
            known = merged.get((port.device, port.port))
            merged[port.device, port.port] = port if known is None else _fill(known, port)
    return tuple(_nic(port) for _, port in sorted(merged.items(), key=lambda item: _natural(item[0])))


def _fill(known: PortFacts, more: PortFacts) -> PortFacts:
    gaps = {name: value for name, value in vars(more).items() if getattr(known, name) is None}
    return replace(known, **gaps)


def _nic(port: PortFacts) -> Nic:
    kind = _kind(port)
    usable, why = _usable(kind, port.state)
    return Nic(
        device=port.device,
        port=port.port,
        kind=kind,
        rate_gbps=port.rate_gbps,
        state=port.state,
        phys_state=port.phys_state,
        netdev=port.netdev,
        subnet_prefix=port.subnet_prefix,
        sm_lid=port.sm_lid,
        usable_by_nccl_ib=usable,
        why=why,
    )


def _kind(port: PortFacts) -> NicKind:
    """By device name where the link layer misleads (Omni-Path says InfiniBand), else by link layer."""
    by_name: dict[str, NicKind] = {"hfi1": "Omni-Path", "efa": "EFA", "rxe": "Soft-RoCE", "siw": "iWARP"}
    for prefix, kind in by_name.items():
        if port.device.startswith(prefix):
            return kind
    by_layer: dict[str | None, NicKind] = {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}
    return by_layer.get(port.link_layer, "unknown")


def _usable(kind: NicKind, state: str | None) -> tuple[bool | None, str]:
    """Whether NCCL's verbs transport takes the port; None where the tools did not say enough."""
    if kind == "unknown":
        return None, "link layer not known"
    if kind not in ("InfiniBand", "RoCE"):
        return False, f"NCCL's verbs transport does not take {kind}"
    if state is None:
        return None, "port state not known"
    if state != "Active":
        return False, f"port is {state}, NCCL takes only Active ports"
    return True, "port ACTIVE and a link layer NCCL accepts"


def _number(text: str) -> float | None:
    match = re.match(r"\d+(\.\d+)?", text)
    return float(match.group()) if match else None


def _lid(text: str | None) -> int | None:
    try:
        return int(text, 0) if text else None
    except ValueError:
        return None


def _natural(key: tuple[str, int]) -> tuple[list[tuple[int, str]], int]:
    """Sort key that puts mlx5_2 before mlx5_10."""
    parts = re.split(r"(\d+)", key[0])
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], key[1]
