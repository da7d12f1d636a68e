"""Differences between the hosts of one cluster, and between two inventories of the same hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holmes_core.records.inventory import Host, Inventory
from holmes_core.units import format_memory, format_rate

SAME_RATE = 1.2  # times: figures of one link vary by a tenth between tests


@dataclass(frozen=True)
class Difference:
    """One fact that differs, with each value and the hosts that have it."""

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


FACTS: Mapping[str, Callable[[Host], str | None]] = {
    "reachable": lambda host: "yes" if host.reachable else "no",
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
    """Return the facts that differ between hosts of a cluster. Not known counts as a separate value."""
    found: list[Difference] = []
    for cluster in inventory.clusters:
        hosts = [inventory.host(name) for name in cluster.hosts]
        for fact, read in FACTS.items():
            found += _difference(cluster.name, fact, [(host.name, read(host)) for host in hosts])
    return tuple(found)


def changes(older: Inventory, newer: Inventory) -> tuple[Difference, ...]:
    """Return the facts of hosts that changed from `older` to `newer`, and hosts and clusters that came or went."""
    found: list[Difference] = []
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
            found += _difference(name, fact, [("older", read(before[name])), ("newer", read(after[name]))])
        found += _difference(name, "cluster", [("older", _cluster(older, name)), ("newer", _cluster(newer, name))])
    return (*found, *_changed_wire(_wire(older), _wire(newer)))


Rates = Mapping[tuple[str, str], float]
"""Bytes per second of payload by the ends of a wire and its network or method."""


def _wire(inventory: Inventory) -> Rates:
    """Return the best measured rate of each pair of hosts, direction and method, and the rate of each trunk."""
    rates: dict[tuple[str, str], float] = {}
    for link in inventory.links:
        sender, receiver = link.hosts if link.direction == "forward" else link.hosts[::-1]
        how = f"link, {link.method}{' in a tunnel' if link.tunnel else ''}{' of GPUs' if link.memory == 'gpu' else ''}"
        key = f"{sender} -> {receiver}", how
        rates[key] = max(rates.get(key, 0.0), link.bandwidth_bytes_per_s.median)
    for trunk in inventory.trunks:
        rates[" - ".join(trunk.clusters), "trunk" if len(trunk.clusters) > 1 else "uplink"] = (
            trunk.bandwidth_bytes_per_s
        )
    return rates


def _changed_wire(older: Rates, newer: Rates) -> Iterator[Difference]:
    """Yield links and trunks that came, went, or changed their rate by more than two tests of one link vary."""
    for key in dict.fromkeys((*older, *newer)):
        rates = older.get(key), newer.get(key)
        known = [rate for rate in rates if rate is not None]
        if len(known) < 2 or max(known) > SAME_RATE * min(known):
            words = ["not measured" if rate is None else format_rate(rate) for rate in rates]
            yield Difference(*key, tuple((word, (who,)) for word, who in zip(words, ("older", "newer"), strict=True)))


def _cluster(inventory: Inventory, host: str) -> str | None:
    """Return the members of the host's cluster, because its name may change although they do not."""
    return next((", ".join(cluster.hosts) for cluster in inventory.clusters if host in cluster.hosts), None)


def _difference(subject: str, fact: str, read: Sequence[tuple[str, str | None]]) -> Iterator[Difference]:
    """Yield the difference if the values that were read differ."""
    values: dict[str, list[str]] = {}
    for who, value in read:
        values.setdefault(value or "not known", []).append(who)
    if len(values) > 1:
        yield Difference(subject, fact, tuple((value, tuple(who)) for value, who in values.items()))
