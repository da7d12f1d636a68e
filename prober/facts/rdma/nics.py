"""NICs: all known facts about each RDMA port, its kind, and its use by NCCL's verbs transport."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter

from holmes_core.records.devices import Netdev, Nic, NicKind, PciLink
from holmes_core.records.inventory import Conflict
from prober.asking.merge import by_key, merged, updated
from prober.facts.rdma.nic_kind import guid_of, kind_of
from prober.facts.rdma.port_facts import WHOLE_DEVICE, PortFacts, subnet_prefix

Source = tuple[str, PortFacts]

_COMPARED = (
    *("link_layer", "state", "phys_state", "rate_gbps", "netdev", "firmware", "lid", "sm_lid", "node_guid"),
    "sys_image_guid",
)
_SAME_IN_NIC = frozenset(Nic.model_fields) & {each.name for each in fields(PortFacts)}

# PCI device ids of virtual functions, ConnectX-3 to ConnectX-8, in the form of hca_type. Source: pci.ids, vendor 15b3.
_VIRTUAL_TYPES = {"MT4100", "MT4110", "MT4114", "MT4116", "MT4118", "MT4120", "MT4122", "MT4124", "MT4126"}


@dataclass(frozen=True)
class NicReading:
    """The NICs of a host, and the facts on which its sources disagree."""

    nics: tuple[Nic, ...]
    conflicts: tuple[Conflict, ...]


def read_nics(
    sources: Sequence[tuple[str, Iterable[PortFacts]]],
    netdevs: Mapping[str, Netdev],
    links: Mapping[str, PciLink],
    rdma_ruled_out: bool | None,
    physical: Iterable[str],
    pinned_gbps: Mapping[str, float] | None = None,
) -> NicReading:
    """Merge the NICs of (source, facts), given in order of trust.

    `links` are PCI links by address. `physical` names the netdevs that are cards. Cards without an RDMA port become
    NICs of kind Ethernet. With `rdma_ruled_out` the host has no RDMA, so these cards have none either. `pinned_gbps`,
    by RDMA device, overrides the tools.
    """
    collected: dict[tuple[str, int], list[Source]] = {}
    whole: dict[str, list[Source]] = {}
    for source, facts in sources:
        for (device, port), reading in by_key(facts, attrgetter("device", "port"), updated).items():
            if port == WHOLE_DEVICE:
                whole.setdefault(device, []).append((source, reading))
            else:
                collected.setdefault((device, port), []).append((source, reading))
    nics, conflicts = [], []
    for (device, port), readings in collected.items():
        about_device = [(source, replace(reading, port=port)) for source, reading in whole.get(device, [])]
        known, found = merged(f"{device}:{port}", readings + about_device, _COMPARED)
        if device in (pinned_gbps or {}):
            known = replace(known, rate_gbps=(pinned_gbps or {})[device])
        nics.append(_nic(known, netdevs, links))
        if known.state != "Active":  # its rates and lids mean nothing
            found = [conflict for conflict in found if conflict.fact not in ("rate_gbps", "lid", "sm_lid")]
        conflicts += found
        conflicts += _rate_conflict(nics[-1], netdevs)
    rdma_netdevs = {nic.netdev for nic in nics}
    cards = [netdevs[name] for name in physical if name not in rdma_netdevs]
    nics += [_ethernet(card, rdma_ruled_out, links) for card in cards]
    return NicReading(tuple(sorted(nics, key=_natural)), tuple(conflicts))


def _rate_conflict(nic: Nic, netdevs: Mapping[str, Netdev]) -> list[Conflict]:
    netdev = netdevs.get(nic.netdev or "")
    speed = netdev.speed_bytes_per_s if netdev else None
    if nic.kind == "InfiniBand" or nic.state != "Active" or nic.rate_gbps is None or speed is None:
        return []
    netdev_gbps = speed * 8 / 1e9
    if netdev_gbps == nic.rate_gbps:
        return []
    return [
        Conflict(
            subject=nic.hca,
            fact="rate_gbps",
            source_a="RDMA port",
            value_a=f"{nic.rate_gbps:g}",
            source_b=f"netdev {nic.netdev}",
            value_b=f"{netdev_gbps:g}",
        )
    ]


def _nic(port: PortFacts, netdevs: Mapping[str, Netdev], links: Mapping[str, PciLink]) -> Nic:
    netdev = netdevs.get(port.netdev or "")
    kind = kind_of(port, netdev)
    state = port.state or _state_of_netdev(kind, port.netdev_up)
    gids = port.gids
    if kind == "InfiniBand":  # for which the kernel and show_gids print v1
        gids = tuple(each.model_copy(update={"type": "IB"}) if each.type == "RoCE v1" else each for each in gids)
    prefix = port.subnet_prefix or next((subnet_prefix(entry.gid) for entry in gids if entry.index == 0), None)
    foreign = _is_foreign(port, kind, state, bool(netdevs))
    usable, why = (False, FOREIGN) if foreign else usability(kind, state, port.gid_unknown is True and not gids)
    pci_address = port.pci_address or (netdev.pci_address if netdev else None)
    derived = {
        "kind": kind,
        "rate_gbps": _rate_gbps(port, kind, state, netdev),
        "state": state,
        "subnet_prefix": prefix if kind == "InfiniBand" else None,
        "usable_by_nccl_ib": usable,
        "why": why,
        "sm_guid": port.sm_guid if kind == "InfiniBand" else None,
        "driver": port.driver or (netdev.driver if netdev else None),
        "firmware": port.firmware or (netdev.firmware if netdev else None),
        "port_guid": guid_of(port),
        "pci_address": pci_address,
        "pci": port.pci or links.get(pci_address or "", PciLink()),
        "numa_node": port.numa_node if port.numa_node is not None else (netdev.numa_node if netdev else None),
        "virtual_function": _is_virtual(port),
        "bond": "bond" in port.device or bool(netdev and netdev.kind == "bond"),
        "gids": gids,
        "gid_choice": next((entry.index for entry in gids if entry.type == "RoCE v2" and entry.ipv4), None),
        "pkeys": port.pkeys if kind == "InfiniBand" else None,
    }
    return Nic(**{name: getattr(port, name) for name in _SAME_IN_NIC} | derived)


FOREIGN = "its netdev is in another network namespace: no GID can be used from here"


def _is_foreign(port: PortFacts, kind: NicKind, state: str | None, netdevs_known: bool) -> bool:
    """Return True for an Active RoCE port without GIDs and netdev, if the tools would show a netdev."""
    asked = netdevs_known and (port.node_type is not None or port.protocol is not None)
    shown = port.netdev_elsewhere is True or asked
    return kind == "RoCE" and state == "Active" and shown and not port.netdev and not port.gids


def _state_of_netdev(kind: NicKind, netdev_up: bool | None) -> str | None:
    """Return the state that a netdev shows. IPoIB is up only on an Active port, but may be down there too."""
    if netdev_up:
        return "Active"
    return "Down" if netdev_up is False and kind not in ("InfiniBand", "unknown") else None


def usability(kind: NicKind, state: str | None, gid_unknown: bool = False) -> tuple[bool | None, str]:
    """Return True if NCCL's verbs transport uses the port, or None if that is not known, and the reason."""
    if kind == "unknown" and state in (None, "Active"):
        return None, "link layer not known"
    if kind == "EFA":
        return False, "EFA: only by way of the aws-ofi-nccl plugin and libfabric, not by NCCL's own verbs transport"
    if kind == "iWARP":
        return False, "iWARP: NCCL's verbs transport lists the port and cannot connect over it"
    if state is None:
        return None, "port state not known"
    if state != "Active":
        return False, f"port is {state}; NCCL takes only Active ports and skips this one"
    if kind == "RoCE" and gid_unknown:
        return None, "RoCE port Active, its GID not known"
    if kind == "Omni-Path":
        return True, "Omni-Path: NCCL takes it for InfiniBand; its verbs are slow and have no GPUDirect"
    if kind == "SoftRoCE":
        return True, "Active verbs device, but software RDMA on a plain NIC: never worth it for NCCL"
    return True, "port ACTIVE and a link layer NCCL accepts"


def _rate_gbps(port: PortFacts, kind: NicKind, state: str | None, netdev: Netdev | None) -> float | None:
    """Return the port's own rate, or for RoCE the speed of its netdev if RDMA tools give none."""
    if port.rate_gbps is not None:
        return port.rate_gbps
    if kind == "RoCE" and state == "Active" and netdev and netdev.speed_bytes_per_s:
        return netdev.speed_bytes_per_s * 8 / 1e9
    return None


def _is_virtual(port: PortFacts) -> bool | None:
    if port.virtual_function is not None:
        return port.virtual_function
    if re.fullmatch(r"MT\d{4,5}", port.hca_type or ""):
        return port.hca_type in _VIRTUAL_TYPES
    return None


_MAX_WITHOUT_RDMA_BYTES_PER_S = 2.5e9 / 8  # every RDMA card has a mode above 2.5 Gbit/s


def _ethernet(netdev: Netdev, rdma_ruled_out: bool | None, links: Mapping[str, PciLink]) -> Nic:
    """Return a card as a NIC for sockets. Ethernet tools alone do not show RDMA."""
    top = netdev.max_speed_bytes_per_s
    without = rdma_ruled_out or (top is not None and top <= _MAX_WITHOUT_RDMA_BYTES_PER_S)
    up = netdev.link_detected
    return Nic(
        device=netdev.name,
        port=0,
        kind="Ethernet",
        rate_gbps=netdev.speed_bytes_per_s * 8 / 1e9 if netdev.speed_bytes_per_s else None,
        state=None if up is None else "Active" if up else "Down",
        phys_state="LinkUp" if up else None,
        netdev=netdev.name,
        subnet_prefix=None,
        sm_lid=None,
        usable_by_nccl_ib=False if without else None,
        why="no RDMA: NCCL uses sockets" if without else "whether RoCE is there, only RDMA tools or sysfs can say",
        driver=netdev.driver,
        firmware=netdev.firmware,
        pci_address=netdev.pci_address,
        pci=links.get(netdev.pci_address or "", PciLink()),
        numa_node=netdev.numa_node,
        virtual_function=True if netdev.kind == "virtual function" else None,
    )


def _natural(nic: Nic) -> tuple[bool, list[tuple[int, str]], int]:
    """Return a sort key that puts RDMA ports first, and mlx5_2 before mlx5_10."""
    parts = re.split(r"(\d+)", nic.device)
    return nic.kind == "Ethernet", [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], nic.port
