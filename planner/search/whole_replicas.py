"""Replicas over several classes, each wholly in one: gradients cross between clusters, the pipeline does not.

Every replica has the same cut, and faster classes run more micro-batches. Shares make the slowest class end as early as
whole micro-batches allow. The problem is small enough to be solved exactly without a program: all sets of classes are
tried, and the fastest classes of a set take as many replicas as fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from math import inf
from typing import NamedTuple

from planner.cost.collectives import times_as_long
from planner.problem.coefficients import Coefficients, crossings_of
from planner.problem.exchange_rates import are_even, rings_on_nic, sync_s_per_byte
from planner.search.closed_form import (
    NO_EDGE,
    ReplicaKind,
    StageExchange,
    busiest_port_s,
    edge_of,
    lane_s,
    layers_within,
    site_stage_s,
    step_s,
)
from planner.search.lower_bounds import stage_paces_s
from planner.search.placement import Placement, PricedPlacement, even_shares, take_surplus
from planner.tolerances import ROUNDING

MAX_CLASSES_FOR_ALL_SETS = 4  # with more, only the fastest 2, 3, 4 ... of them


def place_whole_replicas(coeffs: Coefficients, fixed_layers: tuple[int, ...] | None = None) -> PricedPlacement | None:
    """Return the candidate's best placement with each replica in one class, over at least two; None if none fits.

    The choice of classes counts the latency of their exchange, which the closed form does not.
    """
    best: PricedPlacement | None = None
    least_s = inf
    for replicas in replica_sets(coeffs, fixed_layers):
        found = _place(coeffs, replicas)
        if found is not None and (seconds := found.objective_s + _latency_s(coeffs, tuple(replicas.counts))) < least_s:
            best, least_s = found, seconds
    return best


def _latency_s(coeffs: Coefficients, classes: Sequence[int]) -> float:
    """Return the latency of one ring over all replicas, there and back."""
    farthest_s = max((way.latency_s for way in crossings_of(coeffs, classes)), default=0.0)
    return 2 * (coeffs.candidate.dp - 1) * farthest_s


def _sets(coeffs: Coefficients) -> Iterator[tuple[int, ...]]:
    pp, dp = coeffs.candidate.pp, coeffs.candidate.dp
    usable = [c for c, group_slots in enumerate(coeffs.group_slots) if group_slots >= pp]
    fastest = sorted(usable, key=lambda c: (coeffs.layer_s[c], c))
    sizes = range(2, min(dp, len(usable)) + 1)
    if len(usable) <= MAX_CLASSES_FOR_ALL_SETS:
        yield from (tuple(sorted(chosen, key=fastest.index)) for size in sizes for chosen in combinations(usable, size))
    else:
        yield from (tuple(fastest[:size]) for size in sizes)


class ReplicaSet(NamedTuple):
    """Replicas over several classes: their number in each, their common cut, and by class a lane of one micro-batch."""

    counts: dict[int, int]
    layers: tuple[int, ...]
    lanes: dict[int, ReplicaKind]


def replica_sets(coeffs: Coefficients, fixed_layers: tuple[int, ...] | None) -> Iterator[ReplicaSet]:
    """Yield the replicas over each set of classes that has room for them."""
    for classes in _sets(coeffs):
        if (replicas := _replicas_over(coeffs, classes, fixed_layers)) is not None:
            yield replicas


def _replicas_over(
    coeffs: Coefficients, classes: Sequence[int], fixed_layers: tuple[int, ...] | None
) -> ReplicaSet | None:
    counts = _count_replicas(coeffs, classes)
    if counts is None:
        return None
    layers = fixed_layers or _cut(coeffs, classes)
    if layers is None or not _fits(coeffs, classes, layers):
        return None
    return ReplicaSet(counts, tuple(layers), {c: _lane(coeffs, c, counts, layers) for c in classes})


def stage_exchanges(coeffs: Coefficients, replicas: ReplicaSet) -> list[StageExchange]:
    """Return the exchange of each stage's gradients between all replicas."""
    counts, layers = replicas.counts, replicas.layers
    site = tuple(sorted(counts))
    is_even = are_even(coeffs.cluster[c] for c, count in counts.items() for _ in range(count))
    rings, sizes = rings_on_nic(coeffs, site, counts), [coeffs.sync_bytes(s, held) for s, held in enumerate(layers)]
    per_byte = {
        size: sync_s_per_byte(coeffs, site, rings, longer, is_even) for size, longer in times_as_long(sizes).items()
    }
    return [StageExchange(held, per_byte[size]) for held, size in zip(layers, sizes, strict=True)]


def _place(coeffs: Coefficients, replicas: ReplicaSet) -> PricedPlacement | None:
    shares = share_microbatches(coeffs, replicas)
    if shares is None:
        return None
    lanes = [lane._replace(microbatches=max(shares[c])) for c, lane in replicas.lanes.items()]
    step = step_s(coeffs, lanes, stage_exchanges(coeffs, replicas))
    site = tuple(sorted(replicas.counts))
    row = tuple(c for c in site for _ in range(replicas.counts[c]))
    microbatches = tuple(share for c in site for share in shares[c])
    placement = Placement(coeffs.candidate, replicas.layers, (row,) * coeffs.candidate.pp, microbatches)
    return PricedPlacement(step, placement)


def _hold_weights_together(coeffs: Coefficients, counts: dict[int, int], shares: dict[int, tuple[int, ...]]) -> bool:
    """Return True if replicas that share weights or an optimizer instance run equally many micro-batches each, and are
    either in one cluster or all replicas."""
    candidate = coeffs.candidate
    if candidate.weight_shards == candidate.copies == 1:
        return True
    by_cluster: dict[int, list[int]] = {}
    for c in counts:
        by_cluster.setdefault(coeffs.cluster[c], []).extend(shares[c])
    groups = list(by_cluster.values())
    if candidate.copies == 1:
        groups = [[share for group in groups for share in group]]
    size = candidate.dp // candidate.copies
    return all(len(group) == size and len(set(group)) == 1 for group in groups)


def _count_replicas(coeffs: Coefficients, classes: Sequence[int]) -> dict[int, int] | None:
    """Return the replicas of each class: at least one, the rest where it is fastest. None if they do not fit.

    Replicas that stay together count as one. If each cluster holds a copy, none takes more than its part.
    """
    candidate, each = coeffs.candidate, coeffs.together
    counts, in_cluster = dict.fromkeys(classes, each), Counter[int]()
    for c in classes:
        in_cluster[coeffs.cluster[c]] += each
    if in_cluster.total() > candidate.dp or any(coeffs.group_slots[c] < each * candidate.pp for c in classes):
        return None
    for c in classes:
        left = candidate.dp - in_cluster.total()
        room = candidate.dp // candidate.copies - in_cluster[coeffs.cluster[c]]
        taken = min(left, room, coeffs.group_slots[c] // candidate.pp - each) // each * each
        counts[c] += taken
        in_cluster[coeffs.cluster[c]] += taken
    return counts if in_cluster.total() == candidate.dp else None


def _cut(coeffs: Coefficients, classes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the cut whose slowest stage is fastest on the slowest of `classes`: level, except for the head's stage."""
    pp, slowest = coeffs.candidate.pp, max(classes, key=lambda c: coeffs.layer_s[c])
    layer_s, head_s = coeffs.layer_s[slowest], coeffs.head_s[slowest]
    most, dense, dense_s = [min(row[c] for c in classes) for row in coeffs.capacity], coeffs.first_dense, 0.0
    if dense:  # other layers are counted separately
        most[0], dense_s = most[0] - dense, max(coeffs.dense_s[c] for c in classes)
    number = coeffs.num_layers - dense

    def within(pace_s: float) -> list[int]:
        left_s = [pace_s - dense_s * (s == 0) - head_s * (s == pp - 1) for s in (0, min(1, pp - 1), pp - 1)]
        first, held, with_head = (layers_within(each, layer_s, number) for each in left_s)
        if dense and left_s[0] < -ROUNDING * pace_s:
            first = -number
        if pp == 1:
            return [min(most[0], first)]
        return [min(most[0], first), *(min(limit, held) for limit in most[1:-1]), min(most[-1], with_head)]

    def room(pace_s: float) -> int:
        held = within(pace_s)
        is_short = dense and (held[0] < 0 or min(held[1:], default=1) < 1)
        return -1 if is_short else sum(held)

    paces_s = stage_paces_s(frozenset({(layer_s, head_s, dense_s)}), coeffs.num_layers)
    at = bisect_left(paces_s, number, key=room)
    if at == len(paces_s):
        return None
    layers = within(paces_s[at])
    surplus = take_surplus(layers, range(pp)[::-1], sum(layers) - number)
    layers[0] += dense
    return tuple(layers) if surplus == 0 and min(layers) > 0 and layers[0] >= dense else None


def _fits(coeffs: Coefficients, classes: Sequence[int], layers: Sequence[int]) -> bool:
    return all(held <= coeffs.capacity[s][c] for s, held in enumerate(layers) for c in classes)


def _lane(coeffs: Coefficients, c: int, counts: Mapping[int, int], layers: Sequence[int]) -> ReplicaKind:
    """Return the lane of the replicas in class c, for one micro-batch. Edges within one host are free."""
    last, sharers, replicas = len(layers) - 1, tuple(sorted(counts)), counts[c]
    stages = tuple(site_stage_s(coeffs, (c,), held, (s == 0, s == last), sharers) for s, held in enumerate(layers))
    near = NO_EDGE if replicas * len(layers) <= coeffs.group_slots_per_host[c] else edge_of(coeffs, (c,), (c,))
    edges = (near,) * last
    return ReplicaKind(1, stages, edges, busiest_port_s(coeffs, [(c,)] * len(layers), edges))


def _first_shares(fill: dict[int, float], pace: dict[int, float], counts: dict[int, int], total: int) -> dict[int, int]:
    """Return, by class, a lower bound on each replica's micro-batches if all end at about the same time: nearly all.

    It is no more than dealing one by one to the lane that ends first would give. That dealing continues from here.
    """
    one_each = dict.fromkeys(fill, 1)
    if not min(pace.values()):
        return one_each
    rate = sum(counts[c] / pace[c] for c in pace)
    end_s = (total - sum(counts[c] * (1 - fill[c] / pace[c]) for c in pace)) / rate
    shares = {c: int((end_s - fill[c]) / pace[c]) - 1 for c in pace}
    return shares if min(shares.values()) >= 1 else one_each


def shares_evenly(coeffs: Coefficients, replicas: ReplicaSet) -> bool:
    """Return True if the micro-batches of all replicas differ by at most one.

    They do on classes of equal speed, and if the engine requires it. Other shares need as many micro-batches as
    stages, since fewer would hold less memory than was checked.
    """
    if not coeffs.engine.unequal_replicas:
        return True
    return len({coeffs.layer_s[c] for c in replicas.lanes}) == 1 or coeffs.num_microbatches < coeffs.candidate.pp


def share_microbatches(coeffs: Coefficients, replicas: ReplicaSet) -> dict[int, tuple[int, ...]] | None:
    """Return the micro-batches of every replica by class, such that the slowest lane ends earliest.

    None if a replica would run none, or if replicas that hold weights together would not run equally many.
    """
    shares = _share_microbatches(coeffs, replicas)
    return shares if shares is not None and _hold_weights_together(coeffs, replicas.counts, shares) else None


def _share_microbatches(coeffs: Coefficients, replicas: ReplicaSet) -> dict[int, tuple[int, ...]] | None:
    counts, lanes = replicas.counts, replicas.lanes
    total = coeffs.total_microbatches
    if shares_evenly(coeffs, replicas):
        busiest_s = {
            c: lane_s(coeffs, lane._replace(microbatches=coeffs.num_microbatches)) for c, lane in lanes.items()
        }
        shares_left = iter(even_shares(total, coeffs.candidate.dp))  # the remainder to the fastest lanes
        return {c: tuple(islice(shares_left, counts[c])) for c in sorted(lanes, key=lambda c: (busiest_s[c], c))}
    fill = {c: lane_s(coeffs, lane) for c, lane in lanes.items()}
    pace = {c: lane_s(coeffs, lane._replace(microbatches=2)) - fill[c] for c, lane in lanes.items()}
    per_class = _first_shares(fill, pace, counts, total)
    while sum(counts[c] * share for c, share in per_class.items()) < total:
        per_class[min(lanes, key=lambda c: (fill[c] + per_class[c] * pace[c], c))] += 1
    surplus = sum(counts[c] * share for c, share in per_class.items()) - total
    latest = max(lanes, key=lambda c: (fill[c] + (per_class[c] - 1) * pace[c], c))
    shares = {c: [share] * counts[c] for c, share in per_class.items()}
    for c in (latest, *(c for c in lanes if c != latest)):
        for replica in reversed(range(counts[c])):
            if surplus and shares[c][replica] > 1:
                shares[c][replica] -= 1
                surplus -= 1
    return {c: tuple(held) for c, held in shares.items()} if surplus == 0 else None
