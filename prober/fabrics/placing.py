"""Place hosts in clusters by facts and by the pins in hosts.yaml, and list the hosts that neither can place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from prober.fabrics.same_fabric import FabricPartition, Fabrics, Group, MistakenFabric, partition_by_fabric

Groups = Sequence[tuple[str | None, Group]]
"""Clusters as (label in hosts.yaml or None, host names)."""


@dataclass(frozen=True)
class Placing:
    """The clusters of hosts, and the hosts that no fact places."""

    groups: Groups  # in order of their first hosts
    fabrics: Fabrics
    partition: FabricPartition
    pinned: Mapping[str, str]
    torn: Group  # unpinned hosts of a group whose other hosts are pinned to several labels

    def not_placed(self, alike: MistakenFabric) -> Group:
        """Return the unpinned hosts that may be on any of several fabrics that look alike."""
        return self._left_to_us(alike.not_placed)

    @cached_property
    def fits_several(self) -> Group:
        """Hosts that fit several clusters."""
        return self._left_to_us((*self.partition.fits_several, *self.torn))

    @cached_property
    def without_network(self) -> Group:
        """Hosts that are alone because none of their networks is known."""
        return tuple(name for name in self._alone if not self.fabrics[name].networks)

    @cached_property
    def nothing_in_common(self) -> Group:
        """RoCE hosts that are alone because their networks meet no other host's. A single such host is not listed."""
        found = [name for name in self._alone if self.fabrics[name].kind == "RoCE" and self.fabrics[name].networks]
        return tuple(found) if len(found) > 1 else ()

    @cached_property
    def asked(self) -> frozenset[str]:
        """All hosts that no fact places: findings ask for their clusters."""
        alike = (name for each in self.partition.looked_alike for name in self.not_placed(each))
        return frozenset((*alike, *self.fits_several, *self.without_network, *self.nothing_in_common))

    @cached_property
    def _alone(self) -> Group:
        explained = {name for alike in self.partition.looked_alike for name in alike.hosts}
        explained.update(self.partition.fits_several)
        alone = [names[0] for label, names in self.groups if label is None and len(names) == 1]
        kinds = ("RoCE", "EFA", "Ethernet")
        left = (name for name in alone if name not in explained and self.fabrics[name].kind in kinds)
        return tuple(left) if len(self.groups) > 1 else ()

    def _left_to_us(self, names: Iterable[str]) -> Group:
        return tuple(name for name in names if name not in self.pinned)


def place(fabrics: Fabrics, pinned: Mapping[str, str]) -> Placing:
    """Place hosts by their labels in `pinned`, and the rest by facts, which may join them to a pinned host."""
    partition = partition_by_fabric(fabrics)
    members: dict[tuple[str | None, str], list[str]] = {}
    torn: list[str] = []
    for group in partition.groups:
        labels = {pinned[name] for name in group if name in pinned}
        common = next(iter(labels)) if len(labels) == 1 else None
        for name in group:
            label = pinned.get(name, common)
            members.setdefault((label, "" if label else group[0]), []).append(name)
        torn += [name for name in group if name not in pinned and len(labels) > 1]
    groups = in_order(((label, names) for (label, _), names in members.items()), fabrics)
    return Placing(groups, fabrics, partition, pinned, tuple(torn))


def in_order(groups: Iterable[tuple[str | None, Collection[str]]], fabrics: Fabrics) -> Groups:
    """Return the clusters in order of their first hosts, each with its hosts in order."""
    order = {name: position for position, name in enumerate(fabrics)}
    sorted_names = [(label, tuple(sorted(names, key=order.__getitem__))) for label, names in groups]
    return sorted(sorted_names, key=lambda group: order[group[1][0]])
