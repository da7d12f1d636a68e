"""Brute force over every placement of one candidate, and random small candidates to compare with."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from planner.candidates import Candidate
from planner.closed_form import step_s
from planner.terms import Terms


def compositions(total: int, parts: int, least: int) -> Iterator[tuple[int, ...]]:
    """All tuples of `parts` integers, none below `least`, that add up to `total`."""
    if parts == 1:
        if total >= least:
            yield (total,)
        return
    for first in range(least, total - least * (parts - 1) + 1):
        for rest in compositions(total - first, parts - 1, least):
            yield (first, *rest)


def best_by_enumeration(terms: Terms) -> float | None:
    """The least closed-form seconds of all placements, None if there is none."""
    pp, dp, num_clusters = terms.candidate.pp, terms.candidate.dp, len(terms.places)
    best = None
    for counts in product(compositions(dp, num_clusters, 0), repeat=pp):
        if any(sum(row[c] for row in counts) > terms.places[c] for c in range(num_clusters)):
            continue
        sites = [tuple(c for c in range(num_clusters) for _ in range(row[c])) for row in counts]
        for layers in compositions(terms.num_layers, pp, 1):
            if all(layers[s] <= terms.capacity[s][c] for s in range(pp) for c in sites[s]):
                seconds = step_s(terms, layers, sites)
                best = seconds if best is None or seconds < best else best
    return best


def random_terms(seed: int) -> Terms:
    """A candidate on two or three unequal clusters, with limits on memory that sometimes leave no placement."""
    draw = random.Random(seed)
    num_clusters, dp = draw.choice((2, 2, 3)), draw.randint(1, 3)
    pp = draw.randint(1, 4 if num_clusters == 2 else 2)
    num_layers = draw.randint(pp, 6)
    places = [draw.randint(1, 5) for _ in range(num_clusters)]
    while sum(places) < pp * dp:
        places[draw.randrange(num_clusters)] += 1
    speed = [draw.uniform(0.5, 2) for _ in range(num_clusters)]
    fabric = [draw.uniform(0, 0.5) for _ in range(num_clusters)]
    shared = [draw.uniform(0, 4) for _ in range(num_clusters)]
    most = draw.choice((num_layers, 3, 2))
    return Terms(
        candidate=Candidate(1, pp, dp, 1),
        num_layers=num_layers,
        num_microbatches=draw.choice((1, 2, 4, 9)),
        cluster_names=tuple("abc"[:num_clusters]),
        places=tuple(places),
        capacity=tuple(tuple(draw.randint(1, max(1, most)) for _ in places) for _ in range(pp)),
        layer_s=tuple(speed),
        head_s=tuple(0.7 * seconds for seconds in speed),
        fabric_edge_s=tuple(fabric),
        shared_edge_s=tuple(fabric[c] + shared[c] for c in range(num_clusters)),
        fabric_sync_s_per_byte=tuple(draw.uniform(0, 0.2) for _ in places),
        shared_sync_s_per_byte=tuple(draw.uniform(0.2, 2) for _ in places),
        stage_groups_per_nic=tuple(draw.randint(1, 4) for _ in places),
        layer_gradient_bytes=2,
        first_gradient_bytes=1,
        last_gradient_bytes=3,
    )
