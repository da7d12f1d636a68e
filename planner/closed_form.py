"""The closed form of a step's time, which the integer program minimises, and a bound below all of a candidate's.

A placement is `layers[stage]` and `sites[stage][replica]`, the cluster (as an index) of each.

    step = (m-1) T + sum_s S_s + 2 sum_s E_s + G

S_s is a stage's forward and backward of one micro-batch, E_s one message over edge s -> s+1 (forward and backward once
in the fill), G the longest all-reduce of a stage's gradients, not hidden by the backward. T is the pace of the steady
state: no stage and no edge in either direction is faster, and no loop through neighbouring stages s..k either. 1F1B
makes these loops: stage s runs forward j, stage k gets it and next runs a backward, whose gradient returns to s, which
then runs forward j + (k-s+1). So (k-s+1) T >= S_s + ... + S_k + 2 (E_s + ... + E_{k-1}), where m > p - s: an edge
delays every micro-batch, even with sends that nobody waits for.
Approximations, which the simulation does without: clusters count as their weakest host, an edge is as slow as its
slowest replica, a replica's edge between hosts of one cluster always crosses the fabric, nothing is hidden.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from planner.terms import Terms


def step_s(terms: Terms, layers: Sequence[int], sites: Sequence[Sequence[int]]) -> float:
    """Seconds of one step of the placement."""
    stages = range(len(layers))
    last = len(layers) - 1
    stage_s = [site_stage_s(terms, set(sites[s]), layers[s], s == last) for s in stages]
    edge_s = [_edge_s(terms, sites[s], sites[s + 1]) for s in range(last)]
    sync_s = [site_sync_s(terms, set(sites[s]), s, layers[s]) for s in stages]
    pace_s = max([*stage_s, *edge_s, *_loops_s(terms, stage_s, edge_s)])
    return (terms.num_microbatches - 1) * pace_s + sum(stage_s) + 2 * sum(edge_s) + max(sync_s)


def site_stage_s(terms: Terms, site: Collection[int], num_layers: int, is_last: bool) -> float:
    """Seconds of forward and backward of one micro-batch, at the pace of the slowest cluster of `site`."""
    layer_s = max(terms.layer_s[c] for c in site)
    head_s = max(terms.head_s[c] for c in site)
    return num_layers * layer_s + head_s * is_last


def site_sync_s(terms: Terms, site: Collection[int], stage: int, num_layers: int) -> float:
    """Seconds of the all-reduce of a stage's gradients."""
    size = num_layers * terms.layer_gradient_bytes + terms.extra_gradient_bytes(stage)
    return size * site_sync_s_per_byte(terms, site)


def site_sync_s_per_byte(terms: Terms, site: Collection[int]) -> float:
    """Seconds per gradient byte: on the fabric for one cluster, else on the shared network.

    There, as many stages of a host synchronise at once as fit beside each other, each with dp / clusters replicas.
    """
    if len(site) == 1:
        return max(terms.fabric_sync_s_per_byte[c] for c in site)
    replicas = max(1, terms.candidate.dp // len(site))
    groups = {c: min(terms.candidate.pp, -(-terms.stage_groups_per_nic[c] // replicas)) for c in site}
    return max(terms.shared_sync_s_per_byte[c] * groups[c] for c in site)


def shared_edge_s(terms: Terms, clusters: Collection[int]) -> float:
    """Seconds of one message between stages on `clusters` when at least one replica crosses."""
    return max(terms.shared_edge_s[c] for c in clusters)


def fabric_edge_s(terms: Terms, clusters: Collection[int]) -> float:
    """Seconds of one message between stages on `clusters` when every replica stays in its cluster."""
    return max(terms.fabric_edge_s[c] for c in clusters)


def _edge_s(terms: Terms, before: Sequence[int], after: Sequence[int]) -> float:
    clusters = {*before, *after}
    return fabric_edge_s(terms, clusters) if tuple(before) == tuple(after) else shared_edge_s(terms, clusters)


def _loops_s(terms: Terms, stage_s: Sequence[float], edge_s: Sequence[float]) -> list[float]:
    """Seconds of each loop through stages s..k, per micro-batch that enters it."""
    p, loops = len(stage_s), []
    for s in range(p):
        if terms.num_microbatches > p - s:
            loop_s = stage_s[s]
            for k in range(s + 1, p):
                loop_s += 2 * edge_s[k - 1] + stage_s[k]
                loops.append(loop_s / (k - s + 1))
    return loops


def lower_bound_s(terms: Terms) -> float | None:
    """Seconds no placement of the candidate can beat; None if memory holds the layers nowhere.

    Each term is bounded alone: the pace by the fractional knapsack of `least_pace_s` and the loop through all, stages
    and edges by the fastest cluster, the all-reduce by a stage of at least L/p layers. If no cluster holds all, then
    an edge or every all-reduce crosses.
    """
    compute_s = least_pace_s(terms)
    if compute_s is None:
        return None
    p, m = terms.candidate.pp, terms.num_microbatches
    sum_s = terms.num_layers * min(terms.layer_s) + min(terms.head_s)
    bounds = []
    for crossing_edges, all_cross in _ways_to_cross(terms):
        edges_s = (p - 1 - crossing_edges) * min(terms.fabric_edge_s) + crossing_edges * min(terms.shared_edge_s)
        loop_s = (sum_s + 2 * edges_s) / p if m > p else 0.0
        pace_s = max(compute_s, loop_s, min(terms.shared_edge_s) * (crossing_edges > 0))
        bounds.append((m - 1) * pace_s + sum_s + 2 * edges_s + _least_sync_s(terms, all_cross))
    return min(bounds)


def _ways_to_cross(terms: Terms) -> list[tuple[int, bool]]:
    """(edges that cross at least, whether every stage spans clusters): what a placement must choose between."""
    p = terms.candidate.pp
    if p * terms.candidate.dp <= max(terms.places):
        return [(0, False)]
    ways = [(1, False)] if p > 1 else []
    return ways + [(0, True)] * (terms.candidate.dp > 1)


def _least_sync_s(terms: Terms, all_cross: bool) -> float:
    """Seconds of the all-reduce of a stage of ceil(L/p) layers on the best network it could have."""
    per_byte = terms.shared_sync_s_per_byte if all_cross else [*terms.fabric_sync_s_per_byte]
    if not all_cross and len(terms.places) > 1:
        per_byte = [*per_byte, min(terms.shared_sync_s_per_byte)]
    return -(-terms.num_layers // terms.candidate.pp) * terms.layer_gradient_bytes * min(per_byte)


def least_pace_s(terms: Terms) -> float | None:
    """Seconds below which no cut brings its slowest stage; None if memory holds the layers nowhere.

    The least T among all times a stage can take at which a fractional knapsack of stages, fastest clusters first,
    holds all layers. A stage that spans clusters holds no more than the mean of its clusters' limits.
    """
    largest = [max(stage[c] for stage in terms.capacity) for c in range(len(terms.places))]
    paces = sorted({a * layer_s for c, layer_s in enumerate(terms.layer_s) for a in range(1, largest[c] + 1)})
    low, high = 0, len(paces)
    while low < high:
        middle = (low + high) // 2
        if _layers_within(terms, largest, paces[middle]) >= terms.num_layers - 1e-9:
            high = middle
        else:
            low = middle + 1
    return paces[low] if low < len(paces) else None


def _layers_within(terms: Terms, largest: Sequence[int], pace_s: float) -> float:
    """Most layers p stages can hold, none slower than `pace_s` without the head."""
    fits = [
        (min(limit, int(pace_s / layer_s * (1 + 1e-12)) if layer_s else limit), count)
        for limit, layer_s, count in zip(largest, terms.layer_s, terms.places, strict=True)
    ]
    stages, total = float(terms.candidate.pp), 0.0
    for limit, places in sorted(fits, reverse=True):
        taken = min(stages, places / terms.candidate.dp)
        total += taken * limit
        stages -= taken
    return total
