"""Placements found without a program: a first incumbent, and often the best already, as the lower bounds then prove.

Stages use as few clusters as can hold them, preferring fast links between those. Classes that hold the most layers
within the pace take stages first, and surplus layers are taken from the slowest. Blocks are in the order with the
fastest edges for which memory suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations

from planner.problem.coefficients import Coefficients
from planner.search.closed_form import SiteBlock, blocks_step_s, edge_of
from planner.search.lower_bounds import LayerLimits, LowerBounds
from planner.search.placement import take_surplus

MAX_BLOCKS_TO_PERMUTE = 4  # more are in inventory order, with each class last once
MAX_CLUSTERS_FOR_ALL_SETS = 8  # with more, only the best few by each criterion


@dataclass(frozen=True)
class PricedBlocks:
    """A placement in blocks and its closed-form seconds."""

    seconds: float
    blocks: tuple[SiteBlock, ...]


def place_greedily(bounds: LowerBounds, pace_s: float) -> PricedBlocks | None:
    """Return the best of two placements with stages of at most `pace_s`, one with short gradients; None if none."""
    found = [next(_place(bounds, each), None) for each in _limits(bounds, pace_s)]
    return min((each for each in found if each is not None), key=lambda blocks: blocks.seconds, default=None)


def place_over_clusters(bounds: LowerBounds, pace_s: float) -> Iterator[PricedBlocks]:
    """Yield placements like `place_greedily`, over one cluster, over two and so on."""
    for each in _limits(bounds, pace_s):
        yield from _place(bounds, each)


def _limits(bounds: LowerBounds, pace_s: float) -> Iterable[LayerLimits]:
    """Return the limits with and without short gradients, only once if they are equal."""
    limits = bounds.within(pace_s)
    return dict.fromkeys((limits.both(bounds.synced_within(bounds.least_sync_s(limits))), limits))


def place_cut(coeffs: Coefficients, layers: Sequence[int]) -> PricedBlocks | None:
    """Return the best placement of stages of `layers`: classes in some order take all they hold. None if none fits."""
    classes = [c for c, most in enumerate(coeffs.most_stages) if most]
    few = len(classes) <= MAX_BLOCKS_TO_PERMUTE
    orders = permutations(classes) if few else (tuple(classes), tuple(reversed(classes)))
    found = [_filled(coeffs, layers, order) for order in orders]
    priced = [PricedBlocks(blocks_step_s(coeffs, blocks), blocks) for blocks in found if blocks is not None]
    return min(priced, key=lambda blocks: blocks.seconds, default=None)


def _filled(coeffs: Coefficients, layers: Sequence[int], order: Iterable[int]) -> tuple[SiteBlock, ...] | None:
    """Return blocks of classes in that order; None if they do not hold all stages."""
    blocks, left = list[SiteBlock](), tuple(layers)
    for c in order:
        held, left = left[: coeffs.most_stages[c]], left[coeffs.most_stages[c] :]
        blocks += [SiteBlock((c,), held)] if held else []
    return tuple(blocks) if not left and _fits(coeffs, blocks) else None


def _place(bounds: LowerBounds, limits: LayerLimits) -> Iterator[PricedBlocks]:
    """Yield the placement over the fewest clusters that hold all stages, then over one more and so on."""
    coeffs, size = bounds.coeffs, 0
    for classes in _fewest_clusters(coeffs, limits):
        clusters = len({coeffs.cluster[c] for c in classes})
        if clusters == size:
            continue
        found = [
            PricedBlocks(blocks_step_s(coeffs, blocks), blocks)
            for last in reversed(classes)
            if (blocks := _arrange(coeffs, limits, classes, last)) is not None
        ]
        if found:
            size = clusters
            yield min(found, key=lambda blocks: blocks.seconds)


def _fewest_clusters(coeffs: Coefficients, limits: LayerLimits) -> Iterator[list[int]]:
    """Yield the classes of each set of clusters that may hold all stages: fewest clusters first, then fastest links."""
    clusters = sorted(set(coeffs.cluster))
    for size in range(1, len(clusters) + 1):
        fitting = []
        for chosen in _sets_of_clusters(coeffs, limits, clusters, size):
            classes = [c for c, cluster in enumerate(coeffs.cluster) if cluster in chosen and coeffs.most_stages[c]]
            if {coeffs.cluster[c] for c in classes} == set(chosen) and _holds(coeffs, limits, classes):
                far = sum(max(coeffs.shared_edge_s[c] for c in classes if coeffs.cluster[c] == x) for x in chosen)
                near = sum(coeffs.fabric_edge_s[c] for c in classes)
                fitting.append((far, near, classes))
        yield from (classes for _, _, classes in sorted(fitting))


def _sets_of_clusters(
    coeffs: Coefficients, limits: LayerLimits, clusters: Sequence[int], size: int
) -> Iterable[tuple[int, ...]]:
    """Return all sets of `size` clusters. Of very many clusters, only the sets with most room, links or compute.

    Equal sets are returned once.
    """
    if len(clusters) <= MAX_CLUSTERS_FOR_ALL_SETS:
        return combinations(clusters, size)
    of = {x: [c for c, cluster in enumerate(coeffs.cluster) if cluster == x] for x in clusters}
    orders: tuple[Callable[[int], float], ...] = (
        lambda x: -sum(coeffs.most_stages[c] * limits.middle[c] for c in of[x]),
        lambda x: max(coeffs.shared_edge_s[c] for c in of[x]),
        lambda x: min(coeffs.layer_s[c] for c in of[x]),
    )
    return dict.fromkeys(tuple(sorted(sorted(clusters, key=order)[:size])) for order in orders)


def _holds(coeffs: Coefficients, limits: LayerLimits, classes: Sequence[int]) -> bool:
    stages, total = coeffs.candidate.pp, 0
    for c in sorted(classes, key=lambda c: -limits.middle[c]):
        taken = min(stages, coeffs.most_stages[c])
        total += taken * limits.middle[c]
        stages -= taken
    return stages == 0 and total >= coeffs.num_layers - coeffs.first_dense


def _arrange(
    coeffs: Coefficients, limits: LayerLimits, classes: Sequence[int], last: int
) -> tuple[SiteBlock, ...] | None:
    """Return blocks of `classes` with the head in class `last`, in an order that memory allows; None if none does."""
    counts = _count_stages(coeffs, limits, classes, last)
    if counts is None:
        return None
    used = [c for c in classes if counts[c]]
    for order in _orders(coeffs, used, last):
        ends = {c: (c == order[0], c == order[-1]) for c in order}
        stage_limits = {c: _stage_limits(limits, c, counts[c], *ends[c]) for c in order}
        layers = _cut(coeffs, stage_limits)
        if layers is None:
            continue
        blocks = tuple(SiteBlock((c,), tuple(layers[c])) for c in order)
        if _fits(coeffs, blocks):
            return blocks
    return None


def _count_stages(
    coeffs: Coefficients, limits: LayerLimits, classes: Sequence[int], last: int
) -> dict[int, int] | None:
    """Return the stages of each class: one for `last`, others where most layers fit, then where layers are fastest."""
    counts = dict.fromkeys(classes, 0)
    counts[last], left = 1, coeffs.candidate.pp - 1
    for c in sorted(classes, key=lambda c: (-limits.middle[c], coeffs.layer_s[c], coeffs.fabric_sync_s_per_byte[c], c)):
        taken = min(left, coeffs.most_stages[c] - counts[c])
        counts[c] += taken
        left -= taken
    return counts if left == 0 else None


def _orders(coeffs: Coefficients, used: Sequence[int], last: int) -> list[tuple[int, ...]]:
    """Return the orders of the blocks that end with `last`, those with the fastest edges first."""
    others = [c for c in used if c != last]
    if len(used) > MAX_BLOCKS_TO_PERMUTE:
        return [(*others, last), (*reversed(others), last)]
    orders = [(*order, last) for order in permutations(others)]
    return sorted(orders, key=lambda order: sum(edge_of(coeffs, (a,), (b,)).fill_s for a, b in pairwise(order)))


def _stage_limits(limits: LayerLimits, c: int, count: int, holds_first: bool, holds_last: bool) -> list[int]:
    found = [limits.middle[c]] * count
    if holds_first:
        found[0] = min(found[0], limits.first[c])
    if holds_last:
        found[-1] = min(found[-1], limits.last[c])
    return found


def _cut(coeffs: Coefficients, stage_limits: dict[int, list[int]]) -> dict[int, list[int]] | None:
    """Return layers by class and stage: the limits less the surplus, taken from slow classes and full stages first."""
    class_of = [c for c, limits in stage_limits.items() for _ in limits]
    layers = [limit for limits in stage_limits.values() for limit in limits]
    dense = coeffs.first_dense  # limits exclude them
    surplus = sum(layers) + dense - coeffs.num_layers
    if surplus < 0 or min(layers[1:], default=1) < 1 or layers[0] < (not dense):
        return None
    for layer_s in sorted({coeffs.layer_s[c] for c in stage_limits}, reverse=True):
        surplus = take_surplus(layers, [s for s, c in enumerate(class_of) if coeffs.layer_s[c] == layer_s], surplus)
    if surplus:
        return None
    layers[0] += dense
    return {c: [held for held, at in zip(layers, class_of, strict=True) if at == c] for c in stage_limits}


def _fits(coeffs: Coefficients, blocks: Sequence[SiteBlock]) -> bool:
    """Return True if memory holds every stage on its site."""
    held = [(block.site[0], count) for block in blocks for count in block.layers]
    fits = all(count <= coeffs.capacity[stage][c] for stage, (c, count) in enumerate(held))
    return fits and held[0][1] >= coeffs.first_dense
