"""Pairs of hosts to measure, in rounds of pairs that run at the same time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holmes_core.records.inventory import Cluster, Inventory, Network, NetworkPort
from holmes_core.records.link import LinkKind

Rounds = tuple[tuple["Pair", ...], ...]


@dataclass(frozen=True)
class Pair:
    """Two hosts with their ports on the network between them. `number` counts the pairs of that network.

    With `rdma_only`, enough other pairs are measured by TCP, and this pair only measures the rails of its hosts.
    """

    kind: LinkKind
    network: str
    clusters: tuple[str, str]
    ports: tuple[NetworkPort, NetworkPort]
    number: int
    rdma_only: bool = False

    @property
    def hosts(self) -> tuple[str, str]:
        """The names of both hosts."""
        return self.ports[0].host, self.ports[1].host

    @property
    def claims(self) -> frozenset[str]:
        """Resources that no other test may use meanwhile: both hosts, and between clusters both uplinks."""
        uplinks = [f"uplink of {cluster}" for cluster in self.clusters] if self.kind == "between" else []
        return frozenset((*(f"host {host}" for host in self.hosts), *uplinks))


def choose_pairs(inventory: Inventory, limit: int) -> tuple[Pair, ...]:
    """Return at most `limit` pairs inside every cluster and between every two, which use hosts about equally.

    Every host is in a pair of its cluster if the limit allows, and in clusters with rails in any case. Between two
    clusters, as many pairs as the smaller has hosts share no host, so that they can run at once. The pair of the
    tunnel's hub comes first. Clusters of one host, and hosts without an address on the network, give no pair.
    """
    used: Counter[str] = Counter()
    pairs = [pair for cluster in inventory.clusters for pair in _inside(cluster, limit, used)]
    if inventory.shared is not None:
        for one, other in itertools.combinations(inventory.clusters, 2):
            pairs += _between(one, other, inventory.shared, limit, used, inventory.security.tunnel_hub)
    return tuple(pairs)


def into_rounds(pairs: Iterable[Pair]) -> Rounds:
    """Return the pairs in rounds, so that no two pairs of a round share a host or the uplink of a cluster.

    Each pair goes into the first round with room for it.
    """
    rounds: list[list[Pair]] = []
    claimed: list[set[str]] = []
    for pair in pairs:
        number = next((number for number, claims in enumerate(claimed) if not claims & pair.claims), len(rounds))
        if number == len(rounds):
            rounds.append([])
            claimed.append(set())
        rounds[number].append(pair)
        claimed[number] |= pair.claims
    return tuple(tuple(members) for members in rounds)


def _inside(cluster: Cluster, limit: int, used: Counter[str]) -> Iterable[Pair]:
    ports = [port for port in cluster.fabric.ports if port.address is not None or port.hcas]
    enough = (len(ports) + 1) // 2 if len(ports) > 1 else 0
    has_rails = all(port.hcas for port in ports)
    for number in range(enough if has_rails else min(limit, enough)):
        first = _least_used(ports, used)
        second = _least_used([port for port in ports if port is not first], used)
        used.update((first.host, second.host))
        clusters = (cluster.name, cluster.name)
        yield Pair("inside", cluster.fabric.name, clusters, (first, second), number, rdma_only=number >= limit)


def _between(
    one: Cluster, other: Cluster, shared: Network, limit: int, used: Counter[str], hub: str | None
) -> Iterable[Pair]:
    sides = [_addressed(shared, cluster.hosts) for cluster in (one, other)]
    if not all(sides):
        return
    here: Counter[str] = Counter()
    for number in range(min(limit, max(len(ports) for ports in sides))):
        first, second = (
            min(ports, key=lambda port: (here[port.host], port.host != hub, used[port.host])) for ports in sides
        )
        here.update((first.host, second.host))
        used.update((first.host, second.host))
        yield Pair("between", shared.name, (one.name, other.name), (first, second), number)


def _addressed(network: Network, hosts: Iterable[str]) -> list[NetworkPort]:
    members = set(hosts)
    return [port for port in network.ports if port.host in members and port.address is not None]


def _least_used(ports: Sequence[NetworkPort], used: Counter[str]) -> NetworkPort:
    """Return the first port whose host is in the fewest pairs."""
    return min(ports, key=lambda port: used[port.host])
