"""Partition hosts by fabric. The result rests on proof, never on a guess, and does not depend on the hosts' order.

RoCE, EFA and Ethernet hosts share a fabric if their networks overlap. For RoCE, routes in both directions prove it too.
A host that has nothing in common with others becomes a separate cluster: sockets inside a fabric are slow, but RDMA
between two fabrics fails.

InfiniBand fabrics look alike by default, so unknown facts count as equal. Different subnet prefixes, subnet managers,
partitions or IPoIB networks set two hosts apart.

The same LID or address on two hosts proves two subnets, even if all else looks alike. Then only the networks around the
rails can show which hosts belong together. People set addresses, so a host that has all addresses of another host leads
to a finding, and the remaining hosts stay one fabric.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prober.fabrics.collisions import Pair, collisions
from prober.fabrics.fabric import Fabric
from prober.fabrics.union_find import UnionFind
from prober.rails.port_networks import Network, parsed

Fabrics = Mapping[str, Fabric]
"""Fabrics by the names of their hosts."""
Group = tuple[str, ...]


@dataclass
class FabricPartition:
    """Groups of hosts that share a fabric, and doubts that the user should know about."""

    groups: list[Group] = field(default_factory=list)
    looked_alike: list[MistakenFabric] = field(default_factory=list)
    fits_several: list[str] = field(default_factory=list)
    proved_apart: set[Pair] = field(default_factory=set)  # hosts that look alike and cannot be on one fabric


@dataclass(frozen=True)
class MistakenFabric:
    """Hosts that look like one fabric and are not. `proof` names a value that two of them have but could not share."""

    hosts: Group
    proof: str
    not_placed: Group  # hosts that no fact places


def partition_by_fabric(fabrics: Fabrics) -> FabricPartition:
    """Return the groups in order of their first hosts, as `fabrics` lists them."""
    partition = FabricPartition()
    order = {name: position for position, name in enumerate(fabrics)}
    for transport in sorted({fabric.transport for fabric in fabrics.values()}):
        members = {name: fabric for name, fabric in fabrics.items() if fabric.transport == transport}
        if "loopback" in transport:
            partition.groups.append(tuple(members))
            continue
        joined = _infiniband(members, partition) if "InfiniBand" in transport else _by_network(members)
        for group in joined:
            partition.groups += _split(group, fabrics, partition)
    in_order = [tuple(sorted(group, key=order.__getitem__)) for group in partition.groups]
    partition.groups = sorted(in_order, key=lambda group: order[group[0]])
    return partition


def meet(one: Fabric, other: Fabric) -> bool:
    """Return True if networks overlap, or if RoCE routes over the rails lead both ways."""
    if any(overlap(a, b) for a in one.networks for b in other.networks):
        return True
    both_ways = leads_to(one.routed, other.networks) and leads_to(other.routed, one.networks)
    return one.kind == "RoCE" and both_ways


def contradict(one: Fabric, other: Fabric) -> bool:
    """Return True if a known fact sets the two apart."""
    if one.transport != other.transport or not _agree(_facts(one), _facts(other)):
        return True
    return bool(one.networks and other.networks) and not meet(one, other)


def agree(fabrics: Iterable[Fabric]) -> bool:
    """Return True if no known InfiniBand prefix, subnet manager or partition sets any two fabrics apart."""
    return all(_agree(one, other) for one, other in itertools.combinations({_facts(each) for each in fabrics}, 2))


def fit(one: Fabric, other: Fabric) -> bool:
    """Return True if nothing sets two InfiniBand hosts apart. IPoIB networks count as in `_Item.fits`."""
    wired_alike = not (one.networks and other.networks) or meet(one, other)
    return _agree(_facts(one), _facts(other)) and (
        wired_alike or not _rails_with_network([one]) & _rails_with_network([other])
    )


def _by_network(members: Fabrics) -> list[Group]:
    """Return groups of hosts that overlapping networks, or routes over their rails, join."""
    sets: UnionFind[str] = UnionFind(members)
    _join_networks(sets, members)
    _join_routes(sets, members)
    anywhere = {name: fabric for name, fabric in members.items() if fabric.routed_anywhere}
    # Default routes over rails may lead anywhere. If the hosts have another network in common, they count as joined.
    _join_equal(sets, {name: fabric.around for name, fabric in anywhere.items()})
    return sets.groups()


def _join_networks(sets: UnionFind[str], members: Fabrics) -> None:
    """Join hosts with overlapping networks. In sorted order, a network directly follows those that contain it."""
    owners: dict[str, list[str]] = {}
    for name, fabric in members.items():
        for each in fabric.networks:
            owners.setdefault(each, []).append(name)
    holding: list[tuple[Network, str]] = []
    for network, text in sorted(((parsed(each), each) for each in owners), key=_place):
        sets.join(owners[text])
        while holding and not _holds(holding[-1][0], network):
            holding.pop()
        if holding:
            sets.join([owners[holding[-1][1]][0], owners[text][0]])
        holding.append((network, text))


def _place(item: tuple[Network, str]) -> tuple[int, int, int]:
    return item[0].version, int(item[0].network_address), item[0].prefixlen


def _join_routes(sets: UnionFind[str], members: Fabrics) -> None:
    """Join hosts whose routes lead to one another's networks in both directions."""
    networks = sorted(((parsed(text), name) for name, f in members.items() for text in f.networks), key=_place)
    places = [_place(item)[:2] for item in networks]
    of_routes: dict[frozenset[str], set[str]] = {}
    for name, fabric in members.items():
        if fabric.kind == "RoCE" and fabric.routed:
            of_routes.setdefault(fabric.routed, set()).add(name)
    reached = {prefixes: set(_reached(prefixes, networks, places)) for prefixes in of_routes}
    for prefixes, names in of_routes.items():
        sets.join(names & reached[prefixes])
    for one, other in itertools.combinations(of_routes, 2):
        there, back = of_routes[other] & reached[one], of_routes[one] & reached[other]
        if there and back:
            sets.join(there | back)


def _reached(
    prefixes: Iterable[str], networks: Sequence[tuple[Network, str]], places: Sequence[tuple[int, int]]
) -> Iterable[str]:
    """Yield hosts with a network inside one of the prefixes."""
    for text in prefixes:
        prefix = parsed(text)
        start = bisect_left(places, (prefix.version, int(prefix.network_address)))
        end = bisect_left(places, (prefix.version, int(prefix.broadcast_address) + 1))
        yield from (name for network, name in networks[start:end] if network.prefixlen >= prefix.prefixlen)


def _join_equal(sets: UnionFind[str], values_by_host: Mapping[str, Iterable[Hashable]]) -> None:
    """Join hosts that have a value in common."""
    owners: dict[Hashable, str] = {}
    for name, values in values_by_host.items():
        for value in values:
            sets.join([owners.setdefault(value, name), name])


def _infiniband(members: Fabrics, partition: FabricPartition) -> list[Group]:
    """Return groups of hosts that nothing sets apart. A host that fits two different fabrics stays alone."""
    ipoib: UnionFind[str] = UnionFind(members)
    _join_networks(ipoib, members)
    alike: dict[tuple[_Facts, str | None], list[str]] = {}
    for name, fabric in members.items():
        alike.setdefault((_facts(fabric), ipoib.root(name) if fabric.networks else None), []).append(name)
    items = [
        _Item(tuple(names), facts, wired, _rails_with_network(members[name] for name in names))
        for (facts, wired), names in alike.items()
    ]
    fitting = {item: {other for other in items if item.fits(other)} for item in items}
    torn = {item for item in items if any(not a.fits(b) for a, b in itertools.combinations(fitting[item], 2))}
    sets: UnionFind[_Item] = UnionFind(item for item in items if item not in torn)
    for item in items:
        if item in torn:
            partition.fits_several += item.hosts
        else:
            sets.join([item, *(fitting[item] - torn)])
    alone: list[Group] = [(name,) for item in torn for name in item.hosts]
    return alone + [tuple(name for item in group for name in item.hosts) for group in sets.groups()]


_Facts = tuple[frozenset[str], frozenset[int], frozenset[str], frozenset[int]]


def _facts(fabric: Fabric) -> _Facts:
    return fabric.subnet_prefixes, fabric.sm_lids, fabric.sm_guids, fabric.partitions


def _agree(one: _Facts, other: _Facts) -> bool:
    """Return True if the two have a value in common in each fact that both show."""
    return not any(ours and theirs and not set(ours) & set(theirs) for ours, theirs in zip(one, other, strict=True))


@dataclass(frozen=True, eq=False)
class _Item:
    """InfiniBand hosts with the same facts. `wired` identifies their IPoIB networks; `rails` have one."""

    hosts: Group
    facts: _Facts
    wired: str | None
    rails: frozenset[int]

    def fits(self, other: _Item) -> bool:
        """Return True if nothing sets the two apart.

        Different IPoIB networks do so on rails with the same number. On different rails they differ on sound hosts too.
        """
        if not _agree(self.facts, other.facts):
            return False
        return None in (self.wired, other.wired) or self.wired == other.wired or not self.rails & other.rails


def _rails_with_network(fabrics: Iterable[Fabric]) -> frozenset[int]:
    return frozenset(number for fabric in fabrics for number, of_rail in enumerate(fabric.interfaces) if of_rail)


def _split(group: Group, fabrics: Fabrics, partition: FabricPartition) -> list[Group]:
    """Split a group that looks like one fabric if two of its hosts prove that it is more than one."""
    members = {name: fabrics[name] for name in group}
    proofs = collisions(members)
    if not proofs:
        return [group]
    partition.proved_apart.update(proofs)
    # A network that hosts of different fabrics share proves nothing about others.
    misleading = {network for pair in proofs for network in members[pair[0]].around & members[pair[1]].around}
    around: UnionFind[str] = UnionFind(members)
    _join_equal(around, {name: fabric.around - misleading for name, fabric in members.items()})
    parts = around.groups()
    rest = _one_in_any_case(parts, proofs) if fabrics[group[0]].kind != "InfiniBand" else ()
    placed = [rest] if rest else []
    alone: list[str] = []
    for part in parts:
        left = tuple(name for name in part if name not in rest)
        if len(left) > 1 and len(left) == len(part) and not _holds_proof(part, proofs):
            placed.append(part)
        else:
            alone += left
    not_placed = tuple(alone) if len(group) > 2 else ()
    partition.looked_alike.append(
        MistakenFabric(group, "; ".join(proofs[pair] for pair in list(proofs)[:1]), not_placed)
    )
    return placed + [(name,) for name in alone]


def _one_in_any_case(parts: Sequence[Group], proofs: Collection[Pair]) -> Group:
    """Return the hosts that are one fabric in any case: all but clones, which have all addresses of another host.

    A host may be configured like another by mistake, which says nothing about the rest. A clone that shares a network
    around the rails with hosts of the rest belongs to them. If several parts hold clones, they are several fabrics.
    """
    clones = {name for pair in proofs for name in pair}
    sides = [part for part in parts if len(part) > 1 and clones & set(part) and not _holds_proof(part, proofs)]
    if len(sides) > 1:
        return ()
    with_rest = {name for part in sides if not clones.issuperset(part) for name in part}
    return tuple(name for part in parts for name in part if name in with_rest or name not in clones)


def _holds_proof(part: Group, proofs: Collection[Pair]) -> bool:
    return any(set(pair) <= set(part) for pair in proofs)


def overlap(one: str, other: str) -> bool:
    """Return True if one of two networks holds the other or equals it."""
    a, b = parsed(one), parsed(other)
    return _holds(a, b) or _holds(b, a)


def _holds(outer: Network, inner: Network) -> bool:
    """Return True if `inner` lies within `outer` or equals it."""
    return (
        outer.version == inner.version
        and outer.prefixlen <= inner.prefixlen
        and outer.network_address <= inner.network_address <= outer.broadcast_address  # type: ignore[operator]
    )


def leads_to(prefixes: Iterable[str], networks: Iterable[str]) -> bool:
    """Return True if one of the route prefixes covers one of the networks."""
    targets = [parsed(network) for network in networks]
    return any(_holds(parsed(prefix), target) for prefix in prefixes for target in targets)
