"""Find LIDs and IP addresses that two hosts have in common, although hosts on one fabric cannot.

A LID is unique in its subnet, so a LID in common proves two InfiniBand subnets. IP addresses are set by people. If two
hosts have some of them in common, that is a mistake and proves nothing. If they have all in common, their networks only
look alike. Containers on one machine share its ports and addresses, so they prove nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from prober.fabrics.fabric import Fabric

Pair = tuple[str, str]


def collisions(members: Mapping[str, Fabric]) -> dict[Pair, str]:
    """Return pairs of hosts, by name, that cannot be on one fabric, each with the proof in words."""
    found: dict[Pair, str] = {}
    lids = {name: fabric.lids() for name, fabric in members.items()}
    for (prefix, number, lid), pair in _shared(lids):
        if _one_machine(members, pair):
            continue
        one, other = (lids[name][prefix, number, lid] or name for name in pair)
        if one != other:
            where = f"subnet prefix {prefix}" if prefix else "the same subnet prefix"
            found.setdefault(pair, f"{pair[0]} and {pair[1]} both have LID {lid} under {where}")
    for pair, addresses in _shared_addresses(members).items():
        fewest = min(len(members[name].addresses) for name in pair)
        if len(addresses) == fewest and not _one_machine(members, pair):
            found.setdefault(pair, f"{pair[0]} and {pair[1]} both have the address {min(addresses)}")
    return found


def addresses_given_twice(members: Mapping[str, Fabric]) -> dict[Pair, str]:
    """Return pairs of hosts that share some of their rails' addresses but not all: one of the two is misconfigured."""
    return {
        pair: min(addresses)
        for pair, addresses in _shared_addresses(members).items()
        if len(addresses) < min(len(members[name].addresses) for name in pair) and not _one_machine(members, pair)
    }


def _shared_addresses(members: Mapping[str, Fabric]) -> dict[Pair, set[str]]:
    found: dict[Pair, set[str]] = {}
    without_ipoib = {name: fabric.addresses for name, fabric in members.items() if fabric.kind != "InfiniBand"}
    for address, pair in _shared(without_ipoib):
        found.setdefault(pair, set()).add(address)
    return found


T = TypeVar("T", bound=Hashable)


def _shared(values_by_host: Mapping[str, Iterable[T]]) -> Iterable[tuple[T, Pair]]:
    """Yield each value that several hosts have, once per pair of these hosts, the pair's names sorted."""
    owners: dict[T, list[str]] = {}
    for name, values in values_by_host.items():
        for value in values:
            owners.setdefault(value, []).append(name)
    for value, names in owners.items():
        for pair in itertools.combinations(sorted(names), 2):
            yield value, pair


def _one_machine(members: Mapping[str, Fabric], pair: Pair) -> bool:
    one, other = (members[name].machine for name in pair)
    return one is not None and one == other
