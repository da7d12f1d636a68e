"""Lower bounds on a candidate's step, in seconds, and the paces worth trying.

All relax the program of program.py: stages use the best classes available, whatever their position, and each term of
the closed form is bounded by itself. A stage over several classes or clusters is as slow as the slowest of them and
holds no more than the smallest memory allows. So stages are filled with group slots in descending order of their
limits, which maximises the smallest limit in each stage. Limits and numbers of layers exclude the first layers without
experts, which the first stage holds as well.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import accumulate, combinations
from math import inf

from planner.problem.coefficients import FREE, Coefficients
from planner.problem.exchange_rates import least_crossing_s_per_byte, least_sync_s_per_byte
from planner.search.closed_form import Edge, layers_within, pace_of
from planner.search.early_bounds import more_stages
from planner.tolerances import ROUNDING


@dataclass(frozen=True)
class LayerLimits:
    """The most layers of a first, a middle and a last stage, by class."""

    first: tuple[int, ...]
    middle: tuple[int, ...]
    last: tuple[int, ...]

    def both(self, other: LayerLimits) -> LayerLimits:
        """Return the limits that satisfy both."""
        pairs = ((self.first, other.first), (self.middle, other.middle), (self.last, other.last))
        return LayerLimits(*(tuple(map(min, mine, its)) for mine, its in pairs))


def _limits(first: Sequence[int], middle: Sequence[int], last: Sequence[int]) -> LayerLimits:
    """Return limits in which a middle stage holds at least as much as the ends could, since there may be none."""
    return LayerLimits(tuple(first), tuple(map(max, first, middle, last)), tuple(last))


class LowerBounds:
    """The lower bounds of one candidate. If `mixed`, they also hold for stages over several clusters."""

    def __init__(self, coeffs: Coefficients, mixed: bool = False) -> None:
        self.coeffs, self.mixed = coeffs, mixed
        self._classes = range(len(coeffs.group_slots))
        self._pp, self._dp = coeffs.candidate.pp, coeffs.candidate.dp
        self._num_layers = coeffs.num_layers - coeffs.first_dense
        self._kind_of = list(zip(coeffs.layer_s, coeffs.head_s, coeffs.dense_s, strict=True))
        self._kinds = set(self._kind_of)
        groups: dict[int, list[int]] = {}
        for c in self._classes:
            groups.setdefault(0 if mixed else coeffs.cluster[c], []).append(c)
        self.groups = list(groups.values())
        self._synced_limits = cache(lambda at: self.synced_within(self.syncs_s[at]))  # bisections repeat it

    @cached_property
    def _capacity(self) -> tuple[tuple[int, ...], ...]:
        """The capacity of the coefficients, less the layers without experts on the first stage."""
        first, *others = self.coeffs.capacity
        return tuple(most - self.coeffs.first_dense for most in first), *others

    @cached_property
    def memory(self) -> LayerLimits:
        """Limits from memory alone; for a middle stage, at the position where it may hold most."""
        capacity = self._capacity
        middle = [max(column) for column in zip(*capacity, strict=True)]
        return _limits(capacity[0], middle, capacity[-1])

    def within(self, pace_s: float) -> LayerLimits:
        """Return the limits of stages that compute within `pace_s` and fit into memory."""
        num_layers = self._num_layers
        alone = {kind: layers_within(pace_s, kind[0], num_layers) for kind in self._kinds}
        before_head = {kind: layers_within(pace_s - kind[1], kind[0], num_layers) for kind in self._kinds}
        layers, with_head = [alone[kind] for kind in self._kind_of], [before_head[kind] for kind in self._kind_of]
        first = with_head if self._pp == 1 else layers
        if self.coeffs.first_dense:
            heads_s = [kind[1] * (self._pp == 1) + kind[2] for kind in self._kind_of]
            first = [
                layers_within(pace_s - s, kind[0], num_layers) for s, kind in zip(heads_s, self._kind_of, strict=True)
            ]
        return _limits(first, layers, with_head).both(self.memory)

    def synced_within(self, sync_s: float) -> LayerLimits:
        """Return the limits of stages that expose at most `sync_s` of their exchange."""
        last = self._pp - 1
        rows = [[self._synced_layers(c, stage, sync_s) for c in self._classes] for stage in (0, max(0, last - 1), last)]
        return _limits(*rows)

    def _synced_layers(self, c: int, stage: int, sync_s: float) -> int:
        """Return the largest number of layers whose exposed exchange takes no longer; it may fall as layers grow."""
        coeffs, rate = self.coeffs, self._rates[c]
        if rate == inf or rate * coeffs.layer_sync_bytes > sync_s * (1 + ROUNDING):
            return 0
        head_s = coeffs.head_s[c] if stage == self._pp - 1 else 0.0
        rest_s = sync_s * (1 + ROUNDING) - rate * self._end_bytes(stage) + head_s
        if stage == 0:
            rest_s += coeffs.dense_s[c]
        slope = rate * coeffs.layer_sync_bytes - coeffs.layer_s[c]
        return self._num_layers if slope <= 0 else max(0, min(self._num_layers, int(rest_s / slope)))

    def _end_bytes(self, stage: int) -> int:
        """Return the bytes that a stage exchanges in addition to its layers with experts."""
        return self.coeffs.sync_bytes(stage, self.coeffs.first_dense if stage == 0 else 0)

    @cached_property
    def _rates(self) -> list[float]:
        """By class, seconds per byte of the fastest exchange it may take part in."""
        return [least_sync_s_per_byte(self.coeffs, c, self.mixed) for c in self._classes]

    def holds(self, limits: LayerLimits) -> bool:
        """Return True if p stages within `limits` can hold all layers."""
        found = self.most_layers(limits)
        return found is not None and found >= self._num_layers

    def most_layers(self, limits: LayerLimits) -> int | None:
        """Return an upper bound on the layers of p stages; None if the hosts cannot hold p stages."""
        if self._pp == 1:
            ends = map(min, limits.first, limits.last)
            return max(
                (limit for c, limit in enumerate(ends) if self.coeffs.most_stages[c] or self._shared_slots),
                default=None,
            )
        total, short = self._most_middle_layers(limits, self._pp)
        if short:
            return None
        return total - self._lost(limits, limits.first) - self._lost(limits, limits.last)

    def _lost(self, limits: LayerLimits, end: Sequence[int]) -> int:
        """Return a lower bound on the number of layers that an end of the pipeline holds less than a middle stage."""
        return min(max(0, m - e) for m, e in zip(limits.middle, end, strict=True))

    def _most_middle_layers(self, limits: LayerLimits, stages: int) -> tuple[int, int]:
        """Return an upper bound on the layers of `stages` middle stages, and the number of them without a host.

        The stages with the largest limits are assumed to be where memory holds most layers.
        """
        total = placed = 0
        rooms, held = self._rooms
        limit_counts = [each for group in self.groups for each in self.stages_of(group, limits.middle)]
        for limit, count in sorted(limit_counts, reverse=True):
            end = min(stages, placed + count)
            ample = min(end, max(placed, bisect_right(rooms, -limit)))  # positions up to here have room for the limit
            total += (ample - placed) * limit + held[end] - held[ample]
            placed = end
        return total, stages - placed

    @cached_property
    def _rooms(self) -> tuple[list[int], list[int]]:
        """By position, the most layers memory holds there in any class, negated, most first; and sums of the most.

        An end, which `_lost` covers, is assumed to have as much room as any other position.
        """
        most = list(map(max, self._capacity))
        ends = {0, self._pp - 1}
        rooms = sorted(-max(most) if stage in ends else -room for stage, room in enumerate(most))
        return rooms, [0, *accumulate(-room for room in rooms)]

    @cached_property
    def _shared_slots(self) -> int:
        return sum(
            sum(self.coeffs.group_slots[c] for c in group) // self._dp for group in self.groups if len(group) > 1
        )

    def stages_of(self, group: Sequence[int], limits: Sequence[int]) -> list[tuple[int, int]]:
        """Return (limit, stages) of classes that form stages together."""
        if len(group) == 1:
            return [(limits[group[0]], self.coeffs.most_stages[group[0]])]
        found, group_slots, done = list[tuple[int, int]](), 0, 0
        for c in sorted(group, key=lambda c: -limits[c]):
            group_slots += self.coeffs.group_slots[c]
            found.append((limits[c], group_slots // self._dp - done))
            done = group_slots // self._dp
        return found

    @cached_property
    def paces_s(self) -> Sequence[float]:
        """All seconds a stage can take, ascending: the possible paces T."""
        return stage_paces_s(frozenset(self._kinds), self.coeffs.num_layers)

    @cached_property
    def first_pace(self) -> int:
        """The index in `paces_s` of the least pace whose stages hold all layers; their number if there is none."""
        return bisect_left(self.paces_s, True, key=lambda pace_s: self.holds(self.within(pace_s)))

    @cached_property
    def syncs_s(self) -> list[float]:
        """All seconds a stage's exchange can expose, ascending."""
        coeffs, last, least = self.coeffs, self._pp - 1, int(not self.coeffs.first_dense)
        found = {0.0}
        for c in (c for c in self._classes if self._dp > 1 and self._rates[c] < inf):
            layer_s = self._rates[c] * coeffs.layer_sync_bytes
            for stage in {0, min(1, last), last}:
                rest_s = self._rates[c] * self._end_bytes(stage) - (coeffs.head_s[c] if stage == last else 0.0)
                rest_s -= coeffs.dense_s[c] if stage == 0 else 0.0
                # The value of `exposed_sync_s` for each number of layers, in one line, since there are very many.
                found.update(
                    max(layer_s, rest_s + a * (layer_s - coeffs.layer_s[c])) for a in range(least, self._num_layers + 1)
                )
        return sorted(found)

    def least_sync_s(self, limits: LayerLimits) -> float:
        """Return a lower bound on the longest exposed exchange, in seconds, of stages within `limits`."""
        if self._dp == 1:
            return 0.0
        at = bisect_left(
            range(len(self.syncs_s)), True, key=lambda at: self.holds(limits.both(self._synced_limits(at)))
        )
        least_s = self.syncs_s[min(at, len(self.syncs_s) - 1)]
        return max(least_s, self._least_crossing_s(limits)) if self.mixed else least_s

    def _least_crossing_s(self, limits: LayerLimits) -> float:
        """Return a lower bound on the exposed exchange of a stage over several clusters with all remaining layers.

        It may be the last stage, with the head, or leave that to another, which then holds fewer layers.
        """
        coeffs, per_byte = self.coeffs, min(least_crossing_s_per_byte(self.coeffs, c) for c in self._classes)
        layer_s = per_byte * coeffs.layer_sync_bytes
        slope = layer_s - max(coeffs.layer_s)
        if slope <= 0 or coeffs.first_dense:  # more layers expose less
            return layer_s
        others, _ = self._most_middle_layers(limits, self._pp - 1)
        held = max(1, coeffs.num_layers - others)
        last_s = held * slope + per_byte * coeffs.last_sync_bytes - max(coeffs.head_s)
        held = max(1, coeffs.num_layers - others + self._lost(limits, limits.last))
        return max(layer_s, last_s if self._pp == 1 else min(last_s, held * slope))

    def least_work_s(self, limits: LayerLimits) -> float:
        """Return a lower bound on the seconds all stages, within `limits`, take together for one micro-batch."""
        coeffs, layers, seconds = self.coeffs, self._num_layers, min(self.coeffs.dense_s)
        fastest_first = self._stages_by_pace
        # A faster stage is assumed to hold whatever a slower one could, so filling the fastest first is best.
        most = list(accumulate((limits.middle[c] for c, _ in reversed(fastest_first)), max))[::-1]
        for (c, stages), limit in zip(fastest_first, most, strict=True):
            taken = min(layers, stages * (limit if self._pp > 1 else layers))
            seconds += taken * coeffs.layer_s[c]
            layers -= taken
        return seconds + min(coeffs.head_s)

    @cached_property
    def _stages_by_pace(self) -> list[tuple[int, int]]:
        """(class, stages), fastest class first: the number of additional stages that can be as fast as the class.

        A stage over several clusters is at least as slow as the fastest class of the second one.
        """
        coeffs = self.coeffs
        fastest_first = sorted(self._classes, key=lambda c: coeffs.layer_s[c])
        group_slots = [(coeffs.cluster[c], coeffs.group_slots[c]) for c in fastest_first]
        return list(zip(fastest_first, more_stages(group_slots, self._dp, self.mixed), strict=True))

    @cached_property
    def least_edges_s(self) -> tuple[float, float]:
        """Lower bounds, in seconds of one direction: the time all edges add to the fill, and the slowest one's pace."""
        coeffs, crossings = self.coeffs, self._least_crossings
        edges = -(-self._pp // max(coeffs.stages_per_host)) - 1
        near = Edge(min(coeffs.fabric_edge_s), self._least_latency_s(inside=True))
        of_cluster = {
            x: [s for c, s in enumerate(coeffs.shared_edge_s) if coeffs.cluster[c] == x] for x in coeffs.cluster_slots
        }
        nics_s = sorted(map(min, of_cluster.values()))[1:]  # the slower end counts
        ways = [coeffs.crossings.get(pair, FREE).edge_s for pair in combinations(sorted(of_cluster), 2)]
        far = Edge(max(min(nics_s, default=0.0), min(ways, default=0.0)), self._least_latency_s(inside=False))
        least_s = min(near.fill_s, far.fill_s) if nics_s else near.fill_s
        total_s = crossings * far.fill_s + max(0, edges - crossings) * least_s
        paced_s = min(near.paced_s(coeffs), far.paced_s(coeffs)) if nics_s else near.paced_s(coeffs)
        return total_s, far.paced_s(coeffs) if crossings else paced_s if edges > 0 else 0.0

    @cached_property
    def _least_crossings(self) -> int:
        """The least number of edges that are not inside one cluster, if stages use as few clusters as possible.

        If stages may be over several clusters, at least one is, and none of its edges is inside one cluster.
        """
        left, clusters = self._pp - self.mixed, 0
        for slots in sorted(self.coeffs.cluster_slots.values(), reverse=True):
            taken = min(left, slots // self._dp)
            left, clusters = left - taken, clusters + (taken > 0)
        return clusters + left + self.mixed - 1

    def _least_latency_s(self, inside: bool) -> float:
        """Return the least latency of a message, in seconds, inside any cluster or between any two."""
        clusters, of = sorted(set(self.coeffs.cluster)), self.coeffs.crossings
        pairs = [(x, x) for x in clusters] if inside else list(combinations(clusters, 2))
        return min((of.get(pair, FREE).latency_s for pair in pairs), default=0.0)

    def at_pace_s(self, pace_s: float) -> float:
        """Return a lower bound on the step, in seconds, of placements whose slowest stage takes `pace_s`."""
        limits = self.within(pace_s)
        return self.without_sync_s(pace_s, limits) + self.least_sync_s(limits)

    def without_sync_s(self, pace_s: float, limits: LayerLimits) -> float:
        """Return a lower bound like `at_pace_s`, without exchanges, of stages within `limits`."""
        others_s = self.coeffs.fill_share * max(0.0, self.least_work_s(limits) - pace_s)
        steady_s = (self.coeffs.num_microbatches - 1) * self._least_pace_s(pace_s)
        return steady_s + pace_s + others_s + 2 * self.least_edges_s[0]

    def from_pace_s(self, pace_s: float) -> float:
        """Return a lower bound on the step, in seconds, of placements whose slowest stage takes `pace_s` or longer."""
        return self.steady_s(pace_s) + self.rest_s

    @cached_property
    def rest_s(self) -> float:
        """Lower bound on all but the steady state, in seconds, at any pace."""
        return self._fill_s + self.least_fitting_sync_s

    @cached_property
    def least_fitting_sync_s(self) -> float:
        """Lower bound on the longest exposed exchange, in seconds, of stages that fit into memory."""
        return self.least_sync_s(self.memory)

    @cached_property
    def exchange_bound_s(self) -> float | None:
        """Lower bound on the step, in seconds, if each exchange exposes only one layer; None if nothing fits."""
        if self.first_pace == len(self.paces_s):
            return None
        layer_sync_s = min(self._rates) * self.coeffs.layer_sync_bytes if self._dp > 1 else 0.0
        return self.steady_s(self.paces_s[self.first_pace]) + self._fill_s + layer_sync_s

    @cached_property
    def full_bound_s(self) -> float | None:
        """Lower bound on the step, in seconds; None if nothing fits."""
        if self.first_pace == len(self.paces_s):
            return None
        return self.from_pace_s(self.paces_s[self.first_pace])

    @cached_property
    def _least_nic_s(self) -> float:
        """Lower bound on a micro-batch's time on the busiest NIC: that of the middle one of three hosts in a row."""
        coeffs, hosts = self.coeffs, -(-self._pp // max(self.coeffs.stages_per_host))
        if hosts <= 2:
            return 0.0
        return min(
            min(2 * near_s, 2 * far_s, near_s + far_s if one else max(near_s, far_s))
            for near_s, far_s, one in zip(coeffs.fabric_port_s, coeffs.shared_port_s, coeffs.has_one_nic, strict=True)
        )

    @cached_property
    def least_share(self) -> float:
        """The least part of all stages' seconds that the fill takes, at any pace.

        Above 1, the fill grows only with the other stages, so a slower pace may make the rest shorter.
        """
        return min(1.0, self.coeffs.fill_share)

    def steady_s(self, pace_s: float, edge_s: float = 0.0) -> float:
        """Return a lower bound on the steady state with a stage of `pace_s` and an edge of `edge_s`, or slower ones.

        It includes the part of the slowest stage that a fill of `least_share` leaves out.
        """
        return (self.coeffs.num_microbatches - 1) * self._least_pace_s(pace_s, edge_s) + (1 - self.least_share) * pace_s

    def _least_pace_s(self, stage_s: float, edge_s: float = 0.0) -> float:
        """Return a lower bound on the seconds per micro-batch of the steady state."""
        return max(pace_of(self.coeffs, stage_s, max(edge_s, self.least_edges_s[1])), self._least_nic_s)

    @cached_property
    def _fill_s(self) -> float:
        """Lower bound on the seconds that the fill adds, at any pace."""
        return self.least_share * self.least_work_s(self.memory) + 2 * self.least_edges_s[0]


@lru_cache(maxsize=256)
def stage_paces_s(kinds: Collection[tuple[float, float, float]], num_layers: int) -> Sequence[float]:
    """Return all seconds a stage can take, ascending, on classes given as (layer, head, layers without experts) s."""
    found = {
        a * layer_s + head for layer_s, head_s, _ in kinds for a in range(1, num_layers + 1) for head in (0.0, head_s)
    }
    for layer_s, head_s, dense_s in kinds:
        if dense_s:
            found.update(a * layer_s + dense_s + head for a in range(num_layers) for head in (0.0, head_s))
    return sorted(found)
