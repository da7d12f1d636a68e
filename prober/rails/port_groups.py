"""RDMA ports in groups of one kind, fabric and rate, joined if they form one set of rails."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Host
from prober.rails.nearness import BESIDE, Nearness, path_class
from prober.rails.port_networks import netdevs_of, networks_of

FAR_MUST_CARRY = 4  # times the bandwidth of nearer ports, for ports far from the GPUs to be the rails
PKEY_MEMBERSHIP = 0x8000  # the bit of a P_Key for full membership; the rest is the partition

Fabric = tuple[object, ...]
"""The key of a port's subnet: prefix, SM lid and partitions, or its IP networks. None is not known."""


@dataclass(frozen=True)
class PortGroup:
    """Ports of one kind and rate that all lead to the same network, or each to a different one."""

    ports: tuple[Nic, ...]
    fabrics: frozenset[Fabric]
    distance: int | None  # class of the longest path from a GPU to its nearest port; None is not known

    @property
    def kind(self) -> str:
        """InfiniBand or RoCE."""
        return self.ports[0].kind

    @property
    def rate_gbps(self) -> float:
        """The rate of each port, or 0 if it is not known."""
        return self.ports[0].rate_gbps or 0.0

    @property
    def total_gbps(self) -> float:
        """The rate of all ports together."""
        return self.rate_gbps * len(self.ports)


def port_groups(host: Host, ports: Iterable[Nic], nearness: Nearness) -> list[PortGroup]:
    """Return the groups of `ports`, joined if they form one set of rails."""
    apart: dict[tuple[object, ...], list[Nic]] = {}
    for port in ports:
        apart.setdefault((port.kind, port.rate_gbps, fabric_of_port(host, port)), []).append(port)
    alike: dict[tuple[object, ...], list[list[Nic]]] = {}
    for (kind, rate, _), members in apart.items():
        models = tuple(sorted({str(port.hca_type) for port in members}))
        near = distance(host, members, nearness, of_ports=True)
        alike.setdefault((kind, rate, models, near), []).append(members)
    groups = []
    for similar in alike.values():
        for members in _one_set(similar):
            fabrics = frozenset(fabric_of_port(host, port) for port in members)
            groups.append(PortGroup(tuple(members), fabrics, distance(host, members, nearness)))
    return groups


def fabric_of_port(host: Host, port: Nic) -> Fabric:
    """Return the key of the port's subnet."""
    if port.kind == "InfiniBand":
        partitions = frozenset(pkey & ~PKEY_MEMBERSHIP for pkey in port.pkeys) if port.pkeys else None
        return port.subnet_prefix, port.sm_lid or None, partitions
    return tuple(sorted(networks_of(netdevs_of(host, port)))) or (None,)


def _one_set(similar: Sequence[list[Nic]]) -> Iterable[list[Nic]]:
    """Join groups of equal size if each is the subnet of one rail and not a separate fabric.

    Rails have one port per subnet. Several InfiniBand ports per subnet are separate fabrics. On Ethernet, equal numbers
    of ports in several networks are rails, because storage and front end have fewer.
    """
    by_count: dict[int, list[list[Nic]]] = {}
    for members in similar:
        by_count.setdefault(len(members), []).append(members)
    for count, groups in by_count.items():
        if count == 1 or groups[0][0].kind != "InfiniBand":
            yield list(chain.from_iterable(groups))
        else:
            yield from groups


def distance(host: Host, ports: Collection[Nic], nearness: Nearness, of_ports: bool = False) -> int | None:
    """Return the class of the longest path from a GPU to its nearest port, or with `of_ports` from a port to its GPU.

    Return None if the paths of a port are not known.
    """
    paths_of: Mapping[str, Mapping[int, str]] = {port.device: nearness.get(port.device, {}) for port in ports}
    if not host.gpus or not all(paths_of.values()):
        return None
    if of_ports:
        return max(min(path_class(path) for path in paths.values()) for paths in paths_of.values())
    return max(min(path_class(paths.get(gpu.index, "SYS")) for paths in paths_of.values()) for gpu in host.gpus)


def best_group(groups: Sequence[PortGroup]) -> PortGroup:
    """Return the rails among one or more groups: the nearest to the GPUs, then the group with the most bandwidth.

    A near group with a small part of the bandwidth of a farther one is the front end.
    """
    most = max(group.total_gbps for group in groups)
    weighty = [group for group in groups if group.total_gbps * FAR_MUST_CARRY >= most]
    known = all(group.distance is not None for group in weighty)
    return min(weighty, key=lambda group: (group.distance if known else 0, *_by_weight(group)))


def ties(groups: Sequence[PortGroup], best: PortGroup) -> list[PortGroup]:
    """Return groups with the kind, rate, number and distance of the rails, between which no fact decides."""
    mark = (best.kind, best.distance, best.rate_gbps, len(best.ports))
    return [g for g in groups if g is not best and (g.kind, g.distance, g.rate_gbps, len(g.ports)) == mark]


def _by_weight(group: PortGroup) -> tuple[object, ...]:
    """Return a sort key: most bandwidth, most ports, then kind and known networks. Names only break ties."""
    addressed = sum(fabric != (None,) for fabric in group.fabrics)
    first = min((port.pci_address or "~", port.device, port.port) for port in group.ports)
    return -group.total_gbps, -len(group.ports), group.kind != "InfiniBand", -addressed, first


def near_part(host: Host, group: PortGroup, nearness: Nearness) -> tuple[Nic, ...]:
    """Return the ports on the PCI switch of a GPU if each GPU has one and they are as many as GPUs, or else all."""
    beside = [
        port for port in group.ports if BESIDE in {path_class(path) for path in nearness.get(port.device, {}).values()}
    ]
    known = all(nearness.get(port.device) for port in group.ports)
    if not known or len(beside) < max(1, len(host.gpus)) or distance(host, beside, nearness) != BESIDE:
        return group.ports
    return tuple(beside)
