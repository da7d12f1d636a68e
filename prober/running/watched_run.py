"""The watched training: its ranks on all hosts, and the bytes between them."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from holmes_core.records.inventory import Inventory
from prober.running.byte_counts import Connected, Interface, RdmaPort, host_of
from prober.running.processes import MARK, JobKey, WatchedRank
from prober.running.watched_host import WatchedHost

BULK_BYTES_PER_S = 5e6  # a model with a lower rate of gradients needs no faster network


class BytePath(NamedTuple):
    """Bytes from a host to another or itself over an interface. `is_watched` is True if the receiver is watched."""

    sender: str
    receiver: str
    interface: str
    sent_bytes: int
    is_watched: bool

    @property
    def leaves_host(self) -> bool:
        """True if the bytes go to another host."""
        return self.sender != self.receiver


@dataclass(frozen=True)
class WatchedRun:
    """The largest training on the hosts. `job` is None if no process has the number of a rank.

    `probed` is the inventory of an earlier probe.
    """

    hosts: tuple[WatchedHost, ...]
    job: JobKey | None
    ranks: tuple[WatchedRank, ...]
    other_ranks: int
    probed: Inventory | None = None

    @property
    def answered(self) -> tuple[WatchedHost, ...]:
        """The hosts that were watched."""
        return tuple(host for host in self.hosts if host.failure is None)

    @cached_property
    def by_name(self) -> dict[str, WatchedHost]:
        """The hosts by their names."""
        return {host.name: host for host in self.hosts}

    @cached_property
    def paths(self) -> tuple[BytePath, ...]:
        """Bytes by sender, receiver and interface, most first."""
        sums: Counter[tuple[str, str, str, bool]] = Counter()
        for path in self._paths():
            sums[path.sender, path.receiver, path.interface, path.is_watched] += path.sent_bytes
        return tuple(BytePath(*ends[:3], total, ends[3]) for ends, total in sums.most_common())

    def of_host(self, name: str) -> list[WatchedRank]:
        """Return the ranks on the host."""
        return [rank for rank in self.ranks if rank.host == name]

    def connections_of(self, rank: WatchedRank) -> list[Connected]:
        """Return the rank's TCP connections."""
        pids = {rank.pid, *(each.pid for each in rank.helpers)}
        return [each for each in self.by_name[rank.host].connections or () if pids & set(each.pids)]

    def bytes_of(self, rank: WatchedRank) -> int | None:
        """Return the bytes on the rank's connections in both directions, or None if its host shows none."""
        if self.by_name[rank.host].connections is None or rank.foreign_network:
            return None
        return sum(each.traffic.total for each in self.connections_of(rank))

    def utilisation_of(self, rank: WatchedRank) -> float | None:
        """Return the share of time that its GPU computes, if the GPU is known."""
        gpu = self.by_name[rank.host].gpu_of(rank)
        return gpu.utilisation if gpu else None

    def measured_bytes_per_s(self, sender: str, receiver: str, interface: str) -> float | None:
        """Return the rate that a probe measured on this path, or else in the other direction. None without either."""
        rates: dict[bool, float] = {}
        for link in self.probed.links if self.probed else ():
            ends = link.hosts if link.direction == "forward" else link.hosts[::-1]
            own = link.hosts.index(sender) if sender in link.hosts and receiver in link.hosts else None
            if own is not None and sender != receiver and link.devices[own] == interface and not link.tunnel:
                is_this_way = ends == (sender, receiver)
                rates[is_this_way] = max(rates.get(is_this_way, 0.0), link.bandwidth_bytes_per_s.median)
        return rates.get(True, rates.get(False))

    def missing_local(self) -> Iterator[tuple[str, list[int], int]]:
        """Yield each host that lacks ranks which its launcher started: their local numbers, and the number started."""
        for host in self.answered:
            groups: dict[str, list[WatchedRank]] = {}
            for rank in self.of_host(host.name):
                groups.setdefault(rank.variables.get("GROUP_RANK", ""), []).append(rank)
            for members in groups.values():
                size = members[0].local_size
                there = {rank.local_rank for rank in members}
                if size is not None and len(members) < size and None not in there:
                    yield host.name, [number for number in range(min(size, 4096)) if number not in there], size

    def unwatched(self) -> int:
        """Return the number of ranks that are on no host that was watched."""
        if self.job is None or self.job.size is None:
            return 0
        here = sum(len(numbers) for _, numbers, _ in self.missing_local())
        return max(0, self.job.size - len(self.ranks) - here)

    def ports(self) -> Iterator[tuple[WatchedHost, RdmaPort]]:
        """Yield the active RDMA ports of hosts with ranks."""
        for host in self.answered:
            if self.of_host(host.name):
                yield from ((host, port) for port in host.ports if port.is_active)

    @property
    def rdma_bytes_per_s(self) -> float:
        """The rate of all active RDMA ports together, in both directions."""
        return sum(port.traffic.total / host.seconds for host, port in self.ports() if port.traffic)

    def _paths(self) -> Iterator[BytePath]:
        owners = self._owners()
        ends = {(each.local, each.remote): host.name for host in self.answered for each in host.connections or ()}
        for rank in self.ranks:
            host = self.by_name[rank.host]
            names = {str(each.ip): at.name for at in reversed(host.interfaces) for each in at.addresses}
            for each in self.connections_of(rank):
                local, remote = host_of(each.local), host_of(each.remote)
                is_inside = local == remote or _is_loopback(remote)
                peer = host.name if is_inside else ends.get((each.remote, each.local)) or owners.get(remote)
                interface = "lo" if is_inside else names.get(local, local)
                yield BytePath(host.name, peer or remote, interface, each.traffic.sent, peer is not None)
                if peer is None:
                    yield BytePath(remote, host.name, interface, each.traffic.received, False)

    def _owners(self) -> dict[str, str]:
        """Return the host of each address that only one host has."""
        pairs = {(str(each.ip), host.name) for host in self.answered for at in host.interfaces for each in at.addresses}
        counts = Counter(address for address, _ in pairs)
        return {address: name for address, name in pairs if counts[address] == 1}


def watched_run(
    hosts: Sequence[WatchedHost], started: str | None = None, probed: Inventory | None = None
) -> WatchedRun:
    """Return the run with the most ranks, or that of the command with the mark `started`. Other ranks are counted.

    A run of several ranks in the hosts' own network, where connections can be seen, is chosen before one in containers.
    """
    hosts = _named_once(hosts)
    every = [rank for host in hosts for rank in host.ranks]
    own = {(rank.job, rank.number) for rank in every if not rank.foreign_network}
    # Containers that share a kernel see each other's processes.
    ranks = [rank for rank in every if not rank.foreign_network or (rank.job, rank.number) not in own]
    for place in (lambda rank: rank.variables.get("MASTER_ADDR", ""), lambda rank: rank.host):
        ranks = _apart(ranks, place)
    counts = Counter(rank.job for rank in ranks)
    own_jobs = {rank.job for rank in ranks if started is not None and rank.variables.get(MARK) == started}
    near = Counter(rank.job for rank in ranks if not rank.foreign_network and counts[rank.job] > 1)
    job = max(counts, key=lambda key: (key in own_jobs, near[key], counts[key], key.port, key.run), default=None)
    chosen = sorted((rank for rank in ranks if rank.job == job), key=lambda rank: (rank.number, rank.host, rank.pid))
    return WatchedRun(tuple(hosts), job, tuple(chosen), len(ranks) - len(chosen), probed)


def _named_once(hosts: Sequence[WatchedHost]) -> list[WatchedHost]:
    """Return the hosts, with a failure for each host that is the same machine as an earlier one."""
    first: dict[frozenset[tuple[int, int, float]], str] = {}
    kept = []
    for host in hosts:
        own = [rank for rank in host.ranks if not rank.foreign_network]
        processes = frozenset((rank.number, rank.pid, rank.started_s) for rank in own)
        name = first.setdefault(processes, host.name) if processes else host.name
        kept.append(host if name == host.name else WatchedHost(host.name, failure=f"it is the same machine as {name}"))
    return kept


def _apart(ranks: Sequence[WatchedRank], place: Callable[[WatchedRank], str]) -> list[WatchedRank]:
    """Return the ranks, with `place` in their job if that has a rank twice, so that it is several trainings."""
    seen = Counter((rank.job, rank.number) for rank in ranks)
    several = {job for (job, _), count in seen.items() if count > 1}
    return [replace(rank, job=rank.job._replace(place=place(rank))) if rank.job in several else rank for rank in ranks]


def interface_of(host: WatchedHost, name: str) -> Interface | None:
    """Return the interface of that name."""
    return next((each for each in host.interfaces if each.name == name), None)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
