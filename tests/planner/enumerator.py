"""Brute force over every placement of one candidate in blocks, and random small candidates to compare with."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import permutations, product

from planner.candidates import Candidate
from planner.closed_form import Block, Site, blocks_step_s
from planner.collectives import Halves
from planner.ilp import make_sites
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


def best_by_enumeration(terms: Terms, crossing: bool) -> float | None:
    """The least closed-form seconds of all placements in blocks, None if there is none.

    `crossing`: with a stage over several clusters, else without.
    """
    best = None
    for blocks in all_blocks(terms, crossing):
        seconds = blocks_step_s(terms, blocks)
        best = seconds if best is None or seconds < best else best
    return best


def all_blocks(terms: Terms, crossing: bool) -> Iterator[tuple[Block, ...]]:
    """Every sequence of blocks on different sites, with every cut, that places and memory allow."""
    pp = terms.candidate.pp
    sites = make_sites(terms, crossing)
    for count in range(1, min(pp, len(sites)) + 1):
        for order in permutations(sites, count):
            crosses = [len({terms.cluster[c] for c in site}) > 1 for site in order]
            if any(crosses) != crossing:
                continue
            for lengths in compositions(pp, count, 1):
                if any(crossed and length > 1 for crossed, length in zip(crosses, lengths, strict=True)):
                    continue
                if has_places(terms, order, lengths):
                    yield from _cuts(terms, order, lengths)


def _cuts(terms: Terms, order: Sequence[Site], lengths: Sequence[int]) -> Iterator[tuple[Block, ...]]:
    sites = [site for site, length in zip(order, lengths, strict=True) for _ in range(length)]
    for layers in compositions(terms.num_layers, len(sites), 1):
        if all(layers[s] <= terms.capacity[s][c] for s, site in enumerate(sites) for c in site):
            starts = [sum(lengths[:index]) for index in range(len(lengths))]
            yield tuple(
                Block(site, layers[start : start + length])
                for site, start, length in zip(order, starts, lengths, strict=True)
            )


def has_places(terms: Terms, order: Sequence[Site], lengths: Sequence[int]) -> bool:
    """Whether every replica of every stage finds a place, each class of a site with one replica at least."""
    dp, free, shared = terms.candidate.dp, list(terms.places), []
    for site, length in zip(order, lengths, strict=True):
        if len(site) == 1:
            if length > terms.slots[site[0]]:
                return False
            free[site[0]] -= dp * length
        else:
            shared += [site] * length
    if min(free) < 0:
        return False
    for rows in product(*(compositions(dp, len(site), 1) for site in shared)):
        left = list(free)
        for site, row in zip(shared, rows, strict=True):
            for c, replicas in zip(site, row, strict=True):
                left[c] -= replicas
        if min(left) >= 0:
            return True
    return False


def random_terms(seed: int) -> Terms:
    """A candidate on two or three unequal classes, with limits on memory that sometimes leave no placement."""
    draw = random.Random(seed)
    num_classes, dp = draw.choice((2, 2, 3)), draw.randint(1, 3)
    pp = draw.randint(1, 4 if num_classes == 2 else 3)
    num_layers = draw.randint(pp, 6)
    per_host = [draw.randint(1, 4) for _ in range(num_classes)]
    places = [each * draw.randint(1, 3) for each in per_host]
    while sum(places) < pp * dp:
        grown = draw.randrange(num_classes)
        places[grown] += per_host[grown]
    speed = [draw.uniform(0.5, 2) for _ in range(num_classes)]
    fabric = [draw.uniform(0, 0.5) for _ in range(num_classes)]
    shared = [draw.uniform(0, 4) for _ in range(num_classes)]
    most = draw.choice((num_layers, 3, 2))
    middle = sorted(tuple(draw.randint(1, max(1, most)) for _ in places) for _ in range(pp))
    rising = [tuple(max(row[c] for row in middle[: stage + 1]) for c in range(num_classes)) for stage in range(pp)]
    ends = {0, pp - 1}
    return Terms(
        candidate=Candidate(1, pp, dp, 1),
        num_layers=num_layers,
        num_microbatches=draw.choice((1, 2, 4, 9)),
        cluster=draw.choice(((0, 0, 1), (0, 1, 2), (0, 1, 2)))[:num_classes],
        places=tuple(places),
        places_per_host=tuple(per_host),
        memory_bytes=(None,) * num_classes,
        capacity=tuple(
            tuple(draw.randint(1, most) for _ in places) if stage in ends else rising[stage] for stage in range(pp)
        ),
        layer=tuple(Halves(seconds / 3, 2 * seconds / 3) for seconds in speed),
        head=tuple(Halves(0.2 * seconds, 0.5 * seconds) for seconds in speed),
        net_names=tuple(draw.choice(("IB", "IB", "Socket")) for _ in places),
        fabric_edge_s=tuple(fabric),
        shared_edge_s=tuple(fabric[c] + shared[c] for c in range(num_classes)),
        fabric_sync_s_per_byte=tuple(draw.uniform(0, 0.5) for _ in places),
        shared_sync_s_per_byte=tuple(draw.uniform(0.5, 2) for _ in places),
        layer_sync_bytes=2,
        first_sync_bytes=1,
        last_sync_bytes=3,
        hides_edges=draw.random() < 0.7,
    )
