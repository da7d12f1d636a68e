"""What differs: between the hosts of one cluster, and between two inventories of the same hosts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holmes_core.records.inventory import Host, Inventory
from holmes_core.units import format_memory, format_rate


@dataclass(frozen=True)
class Difference:
    """One fact that is not the same everywhere: each value and the hosts that have it."""

    subject: str  # a cluster, or a host
    fact: str
    values: tuple[tuple[str, tuple[str, ...]], ...]


def _gpus(host: Host) -> str | None:
    kinds = Counter(f"{gpu.name} {format_memory(gpu.memory_bytes)}" for gpu in host.gpus)
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or None


def _ports(host: Host) -> str | None:
    usable = [nic for nic in host.nics if nic.usable_by_nccl_ib]
    return ", ".join(f"{nic.hca} {nic.rate_gbps or 0:g}" for nic in usable) or None


def _firmware(host: Host) -> str | None:
    found = {f"{nic.hca_type or nic.device} {nic.firmware}" for nic in host.nics if nic.firmware}
    return ", ".join(sorted(found)) or None


def _netdevs(host: Host) -> str | None:
    used = [netdev for netdev in host.netdevs if netdev.addresses and netdev.name != "lo"]
    return ", ".join(f"{n.name} {format_rate(n.speed_bytes_per_s)} MTU {n.mtu}" for n in used) or None


def _reachable(host: Host) -> str | None:
    return "yes" if host.reachable else "no"


FACTS: Mapping[str, Callable[[Host], str | None]] = {
    "reachable": _reachable,
    "GPUs": _gpus,
    "GPU driver": lambda host: host.gpu_driver_version,
    "usable RDMA ports (Gbit/s)": _ports,
    "firmware": _firmware,
    "netdevs": _netdevs,
    "kernel": lambda host: host.kernel,
    "OFED": lambda host: host.software.ofed,
    "Python": lambda host: host.software.python,
    "torch": lambda host: host.software.torch,
    "CUDA": lambda host: host.software.cuda,
    "NCCL": lambda host: host.software.nccl,
}


def peer_differences(inventory: Inventory) -> tuple[Difference, ...]:
    """Facts in which the hosts of a cluster differ; a fact not known on a host counts as a value of its own."""
    found = []
    for cluster in inventory.clusters:
        hosts = [inventory.host(name) for name in cluster.hosts]
        for fact, read in FACTS.items():
            difference = _difference(cluster.name, fact, [(host.name, read(host)) for host in hosts])
            if difference is not None:
                found.append(difference)
    return tuple(found)


def changes(older: Inventory, newer: Inventory) -> tuple[Difference, ...]:
    """Facts of hosts that changed from `older` to `newer`, and hosts or clusters that came or went."""
    found = []
    before, after = {host.name: host for host in older.hosts}, {host.name: host for host in newer.hosts}
    for name in dict.fromkeys((*before, *after)):
        if name not in before or name not in after:
            values = (
                ("absent" if name not in before else "there", ("older",)),
                ("there" if name in after else "absent", ("newer",)),
            )
            found.append(Difference(name, "host", values))
            continue
        for fact, read in FACTS.items():
            difference = _difference(name, fact, [("older", read(before[name])), ("newer", read(after[name]))])
            if difference is not None:
                found.append(difference)
        moved = _difference(name, "cluster", [("older", _cluster(older, name)), ("newer", _cluster(newer, name))])
        if moved is not None:
            found.append(moved)
    return tuple(found)


def _cluster(inventory: Inventory, host: str) -> str | None:
    """The other hosts of the host's cluster: its name may change though its members do not."""
    for cluster in inventory.clusters:
        if host in cluster.hosts:
            return ", ".join(cluster.hosts)
    return None


def _difference(subject: str, fact: str, read: Sequence[tuple[str, str | None]]) -> Difference | None:
    values: dict[str, list[str]] = {}
    for who, value in read:
        values.setdefault(value or "not known", []).append(who)
    if len(values) < 2:
        return None
    return Difference(subject, fact, tuple((value, tuple(who)) for value, who in values.items()))
