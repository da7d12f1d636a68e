"""A check for room for stages over several clusters, quicker than a program.

Each such stage takes group slots in all of its clusters, equally many if it exchanges gradients in two levels. The
remaining slots must hold the other stages, each inside one cluster. The rest of a cluster is mostly too small for
another stage, so few sets of crossing stages leave room for all others, and often none does. The check ignores order,
edges and positions, so only a no is certain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from planner.problem.coefficients import Coefficients
from planner.problem.exchange_rates import Site, replicas_by_cluster, rings_on_nic, sync_s_per_byte
from planner.search.lower_bounds import LayerLimits, LowerBounds
from planner.search.program_spec import make_sites
from planner.tolerances import ROUNDING

MAX_LOOKS = 2000  # at sets of crossing stages; after that, room is assumed


class _Crossing(NamedTuple):
    """A stage on a site over several clusters: the least slots it takes in each, and seconds per byte of its exchange.

    `layers` are the most that it can hold.
    """

    layers: int
    site: Site
    slots: Mapping[int, int]
    s_per_byte: float


class _Look(NamedTuple):
    """A set of crossing stages: the number decided on, the sites and layers of the chosen ones, and the slots left.

    `owed` are slots that they also take, in clusters that are not decided yet.
    """

    decided: int
    sites: frozenset[Site]
    layers: int
    left: Mapping[int, int]
    owed: int


class CrossingRoom:
    """The room for a candidate's stages, with at least one of them over several clusters."""

    def __init__(self, coeffs: Coefficients) -> None:
        self._coeffs, self._inside = coeffs, LowerBounds(coeffs)
        self._pp, self._dp = coeffs.candidate.pp, coeffs.candidate.dp
        self._num_layers = coeffs.num_layers - coeffs.first_dense
        self._crossings = [each for site in make_sites(coeffs, True) for each in _crossings(coeffs, site)]
        self._slots = Counter[int]()
        for cluster, group_slots in zip(coeffs.cluster, coeffs.group_slots, strict=True):
            self._slots[cluster] += group_slots

    def may_hold(self, pace_s: float, sync_s: float) -> bool:
        """Return False if stages within `pace_s`, with up to `sync_s` of exposed exchanges, cannot hold all layers."""
        within = self._inside.within(pace_s)
        limited = [each._replace(layers=self._most_layers(each, within, sync_s)) for each in self._crossings]
        crossings = sorted((each for each in limited if each.layers), key=lambda each: -each.layers)
        sums = [0, *accumulate(each.layers for each in crossings)]
        inside = self._inside_stages(within.both(self._inside.synced_within(sync_s)))
        looks = [_Look(0, frozenset(), 0, self._slots, 0)]
        for _ in range(MAX_LOOKS):
            if not looks:
                return False
            look = looks.pop()
            rooms = self._rooms(look, inside)
            if look.sites and self._hold(look, rooms, 0, 0):
                return True
            more = range(1, min(self._pp - len(look.sites), len(crossings) - look.decided) + 1)
            if any(self._hold(look, rooms, m, sums[look.decided + m] - sums[look.decided]) for m in more):
                looks += self._with_one_more(look, crossings)
        return True

    def _most_layers(self, crossing: _Crossing, within: LayerLimits, sync_s: float) -> int:
        """Return an upper bound on the layers of a crossing stage, at any position."""
        coeffs, site, per_byte = self._coeffs, crossing.site, crossing.s_per_byte
        most, most_s = min(within.middle[c] for c in site), sync_s * (1 + ROUNDING)
        layer_s = per_byte * coeffs.layer_sync_bytes
        slope = layer_s - max(coeffs.layer_s[c] for c in site)
        if layer_s > most_s or slope <= 0:
            return 0 if layer_s > most_s else most
        last_s = per_byte * coeffs.last_sync_bytes - max(coeffs.head_s[c] for c in site)
        first_s = per_byte * coeffs.sync_bytes(0, coeffs.first_dense) - max(coeffs.dense_s[c] for c in site)
        if self._pp > 1:  # the same size counts the head where it is the last stage as well
            return min(most, int((most_s - min(0.0, first_s, last_s)) / slope))
        return min(most, int((most_s - min(0.0, first_s, last_s, first_s + last_s)) / slope))

    def _inside_stages(self, limits: LayerLimits) -> list[tuple[int, int, int]]:
        """Return (most layers, cluster, number in the cluster) of stages inside clusters, most layers first."""
        found = []
        for group in self._inside.groups:
            stages = self._inside.stages_of(group, limits.middle)
            most = sorted((limit for limit, count in stages for _ in range(min(count, self._pp))), reverse=True)
            cluster = self._coeffs.cluster[group[0]]
            found += [(limit, cluster, number) for number, limit in enumerate(most[: self._pp]) if limit]
        return sorted(found, key=lambda stage: -stage[0])

    def _rooms(self, look: _Look, inside: Sequence[tuple[int, int, int]]) -> list[int]:
        """Return the most layers of 0, 1, 2 ... stages inside clusters, in the slots that crossing ones leave."""
        whole = {cluster: left // self._dp for cluster, left in look.left.items()}
        return [0, *accumulate(limit for limit, cluster, number in inside if number < whole[cluster])]

    def _hold(self, look: _Look, rooms: Sequence[int], more: int, layers: int) -> bool:
        """Return True if the stages of `look`, `more` crossing ones with `layers`, and others inside hold all."""
        inside = self._pp - len(look.sites) - more
        enough_slots = sum(look.left.values()) - look.owed >= (inside + more) * self._dp
        return enough_slots and inside < len(rooms) and look.layers + layers + rooms[inside] >= self._num_layers

    def _with_one_more(self, look: _Look, crossings: Sequence[_Crossing]) -> Iterator[_Look]:
        """Yield the looks with one more crossing stage, from those not yet decided on."""
        for at in range(look.decided, len(crossings)):
            layers, site, slots, _ = crossings[at]
            if site not in look.sites and all(look.left[cluster] >= taken for cluster, taken in slots.items()):
                left = {cluster: count - slots.get(cluster, 0) for cluster, count in look.left.items()}
                owed = look.owed + self._dp - sum(slots.values())
                yield _Look(at + 1, look.sites | {site}, look.layers + layers, left, owed)


def _crossings(coeffs: Coefficients, site: Site) -> Iterator[_Crossing]:
    """Yield the ways to use a site over several clusters: with equally many replicas in each, and with any numbers."""
    clusters = Counter(coeffs.cluster[c] for c in site)
    if len(clusters) == 1:
        return
    rings, each = rings_on_nic(coeffs, site), replicas_by_cluster(coeffs, site)
    if each is not None:
        even = sync_s_per_byte(coeffs, site, rings, is_even=True)
        yield _Crossing(0, site, dict.fromkeys(clusters, each), even)
    yield _Crossing(0, site, clusters, sync_s_per_byte(coeffs, site, rings, is_even=False))
