"""Lower bounds on placements in blocks by the set of clusters they use. There are few enough sets to examine each.

The bounds of lower_bounds.py let every stage use the fleet's fastest class, and every edge the fastest wire. But a
placement either pays for the wires to the clusters with fast classes, or does without those classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, combinations
from math import inf
from typing import NamedTuple

from planner.search.closed_form import Edge, edge_of
from planner.search.early_bounds import more_stages
from planner.search.lower_bounds import LayerLimits, LowerBounds

MAX_CLUSTERS = 4  # with more, there are too many sets


class ClusterSet(NamedTuple):
    """Lower bounds on the edges of placements that use all clusters of a set, in seconds of one direction.

    `edges_s` is the time all edges add to the fill, `slowest_s` the pace of the slowest one. `stages` are (class,
    stages), fastest class first: the number of additional stages that can be as fast as the class.
    """

    edges_s: float
    slowest_s: float
    stages: tuple[tuple[int, int], ...]


class ClusterSets:
    """All sets of clusters for the placements that `bounds` covers."""

    def __init__(self, bounds: LowerBounds) -> None:
        self._bounds, self._coeffs = bounds, bounds.coeffs
        self._pp, self._dp = bounds.coeffs.candidate.pp, bounds.coeffs.candidate.dp

    def least_s(self, pace_s: float, limits: LayerLimits) -> float:
        """Return a lower bound on the step, in seconds, of stages within `limits`, one at `pace_s` or slower.

        Exchanges of gradients are left out. Infinite if no set of clusters holds all layers.
        """
        return min(
            (
                self._bounds.steady_s(pace_s, each.slowest_s) + self._bounds.least_share * work_s + 2 * each.edges_s
                for each in self._sets
                if (work_s := self._work_s(each.stages, limits)) < inf
            ),
            default=inf,
        )

    def _work_s(self, stages: Sequence[tuple[int, int]], limits: LayerLimits) -> float:
        """Return a lower bound on the seconds of all stages for one micro-batch; infinite if layers do not fit.

        Each stage holds at least one layer. A faster stage is assumed to hold whatever a slower one could, so filling
        the fastest first is best.
        """
        coeffs, left, seconds = self._coeffs, self._pp, min(self._coeffs.dense_s)
        one = int(not coeffs.first_dense)  # layers without experts may be all that the first stage holds
        layers = coeffs.num_layers - coeffs.first_dense - one * left
        most = list(accumulate((limits.middle[c] for c, _ in reversed(stages)), max))[::-1]
        for (c, count), limit in zip(stages, most, strict=True):
            used = min(left, count) if limit or not one else 0
            more = min(layers, used * (limit - one)) if self._pp > 1 else layers * used
            seconds += (used * one + more) * coeffs.layer_s[c]
            left, layers = left - used, layers - more
        if left or layers > 0:
            return inf
        return seconds + min(coeffs.head_s[c] for c, _ in stages)

    @cached_property
    def _sets(self) -> list[ClusterSet]:
        """Each set of clusters that can hold at least one stage each, with no more clusters than stages."""
        able = sorted(x for x, slots in self._coeffs.cluster_slots.items() if slots >= self._dp)
        sizes = range(1, min(len(able), self._pp) + 1)
        return [self._set(clusters) for size in sizes for clusters in combinations(able, size)]

    def _set(self, clusters: Sequence[int]) -> ClusterSet:
        coeffs = self._coeffs
        inside = [c for c, x in enumerate(coeffs.cluster) if x in clusters]
        fastest_first = sorted(inside, key=lambda c: coeffs.layer_s[c])
        slots = [(coeffs.cluster[c], coeffs.group_slots[c]) for c in fastest_first]
        stages = tuple(zip(fastest_first, more_stages(slots, self._dp, mixed=False), strict=True))
        num_edges = -(-self._pp // max(coeffs.stages_per_host[c] for c in inside)) - 1
        crossing_s, others = sum(spanning(clusters, self._fill_s)), max(0, num_edges - len(clusters) + 1)
        fastest_s = min(self._fill_s[x, y] for x in clusters for y in clusters)
        slowest_s = max(spanning(clusters, self._paced_s), default=0.0)
        return ClusterSet(crossing_s + others * fastest_s, slowest_s, stages)

    @cached_property
    def _fill_s(self) -> Mapping[tuple[int, int], float]:
        return self._fastest({pair: edge.fill_s for pair, edge in self._edges.items()})

    @cached_property
    def _paced_s(self) -> Mapping[tuple[int, int], float]:
        return self._fastest({pair: edge.paced_s(self._coeffs) for pair, edge in self._edges.items()})

    @cached_property
    def _edges(self) -> Mapping[tuple[int, int], Edge]:
        """The edge between each two classes."""
        classes = range(len(self._coeffs.cluster))
        return {(c, d): edge_of(self._coeffs, (c,), (d,)) for c in classes for d in classes}

    def _fastest(self, seconds: Mapping[tuple[int, int], float]) -> Mapping[tuple[int, int], float]:
        """Return, for each two clusters, the least of their classes' `seconds`."""
        found: dict[tuple[int, int], float] = {}
        for (c, d), edge_s in seconds.items():
            pair = self._coeffs.cluster[c], self._coeffs.cluster[d]
            found[pair] = min(edge_s, found.get(pair, inf))
        return found


def spanning(clusters: Sequence[int], seconds: Mapping[tuple[int, int], float]) -> list[float]:
    """Return the seconds of each edge of a minimum spanning tree over `clusters`."""
    joined, found = {clusters[0]}, []
    while len(joined) < len(clusters):
        edge_s, nearest = min((seconds[x, y], y) for x in joined for y in clusters if y not in joined)
        joined.add(nearest)
        found.append(edge_s)
    return found
