"""Placements of shapes that the closed form ranks too low, for the simulation to judge.

A shape is a tensor, pipeline and data parallel degree, and the traffic between clusters. The closed form, by which the
search ranks placements, is off by up to half if links are slow or clusters unlike. So candidates that may win under
some schedule are placed without a program: in blocks, with whole replicas, and with stages that straddle clusters. For
the latter, clusters in some order give their group slots to one stage after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations, product
from math import inf
from operator import itemgetter

from planner.problem.candidates import Candidate, has_fixed_cut, with_instances
from planner.problem.coefficients import Coefficients
from planner.problem.problem import Problem
from planner.schedule.any_schedule_bound import AnyScheduleBounds
from planner.search.greedy import place_cut, place_over_clusters
from planner.search.lower_bounds import LowerBounds
from planner.search.placement import Placement, PricedPlacement, even_shares, from_blocks, usual_cut
from planner.search.refinements import GREEDY_PACES, fixed_cut
from planner.search.whole_replicas import place_whole_replicas
from planner.time_left import TimeLeft

MAX_STAGES = 1024  # of all placed candidates together
MAX_PACES = 16  # tried until a few hold a placement: on unlike GPUs the first ones seldom do
MAX_STRADDLING = 16  # candidates
MAX_CLUSTERS = 3  # for which every order is tried
MAX_COPIED = 100  # placements of one candidate with copies of its weights
MAX_SLOTS = 64  # of a fleet; on larger ones, a cluster without room for a stage is a small part


def other_placements(
    problem: Problem, candidates: Iterable[Candidate], within_s: float, left: TimeLeft
) -> Iterator[PricedPlacement]:
    """Yield placements of candidates that may take less than `within_s`.

    All degrees get their first candidates before any gets a second one. Stops when no time is `left`.
    """
    bounds, is_small = problem.once(AnyScheduleBounds), problem.fleet.num_group_slots(1) <= MAX_SLOTS
    several = is_small and 1 < len(problem.fleet.cluster_names) <= MAX_CLUSTERS
    stages = straddled = 0
    for candidate in _in_turns(candidates) if not left.is_over else ():
        if left.is_over:
            return
        is_due = stages < MAX_STAGES
        straddles = several and straddled < MAX_STRADDLING and min(candidate.pp, candidate.dp) > 1
        if not is_due and not straddles:
            continue
        if bounds.work_s(candidate) >= within_s or bounds.candidate_s(candidate, within_s) >= within_s:
            continue
        if is_due:
            stages += candidate.pp
            yield from _in_blocks(problem, candidate)
            for each in (candidate, *with_instances(problem.job, candidate, len(problem.fleet.cluster_names))):
                yield from _whole_replicas(problem, each)
        if straddles:
            straddled += 1
            ways = straddling_placements if candidate.weight_shards == 1 else copied_placements
            yield from ways(problem, candidate)


def _in_turns(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the first candidate of each tensor, pipeline and data parallel degree, then the second ones, and so on."""
    seen, turns = Counter[tuple[int, int, int]](), list[tuple[int, Candidate]]()
    for candidate in candidates:
        degrees = candidate.tp, candidate.pp, candidate.dp
        turns.append((seen[degrees], candidate))
        seen[degrees] += 1
    return [candidate for _, candidate in sorted(turns, key=itemgetter(0))]


def _in_blocks(problem: Problem, candidate: Candidate) -> Iterator[PricedPlacement]:
    if candidate.copies > 1:
        return  # in each of several clusters
    coeffs = problem.coefficients(candidate)
    if has_fixed_cut(problem.job):
        blocks = place_cut(coeffs, usual_cut(problem.job, candidate.pp))
        if blocks is not None:
            yield PricedPlacement(blocks.seconds, from_blocks(candidate, coeffs.total_microbatches, blocks.blocks))
        return
    bounds = LowerBounds(coeffs)
    if bounds.exchange_bound_s is None:
        return
    left = GREEDY_PACES
    for pace_s in bounds.paces_s[bounds.first_pace : bounds.first_pace + MAX_PACES]:
        found = [*place_over_clusters(bounds, pace_s)]
        for placed in found:
            yield PricedPlacement(placed.seconds, from_blocks(candidate, coeffs.total_microbatches, placed.blocks))
        left -= bool(found)
        if not left:
            break


def _whole_replicas(problem: Problem, candidate: Candidate) -> Iterator[PricedPlacement]:
    if candidate.weight_shards < candidate.dp and len(problem.fleet.classes) > 1:
        placed = place_whole_replicas(problem.coefficients(candidate), fixed_cut(problem.job, candidate))
        if placed is not None:
            yield placed


def straddling_placements(problem: Problem, candidate: Candidate) -> Iterator[PricedPlacement]:
    """Yield placements with an even cut, one for each order of the clusters in which a stage straddles some.

    They have no closed form.
    """
    coeffs = problem.coefficients(candidate)
    cut, shares = usual_cut(problem.job, candidate.pp), even_shares(coeffs.total_microbatches, candidate.dp)
    for order in permutations(range(len(problem.fleet.cluster_names))):
        classes = [c for cluster in order for c, own in enumerate(coeffs.cluster) if own == cluster]
        sites = _fill_in_order(coeffs, classes)[: candidate.pp]
        straddles = any(len({coeffs.cluster[c] for c in row}) > 1 for row in sites)
        if len(sites) < candidate.pp or not straddles:
            continue
        rooms = zip(cut, sites, coeffs.capacity, strict=True)
        if all(held <= room[c] for held, row, room in rooms for c in row):
            yield PricedPlacement(inf, Placement(candidate, cut, sites, shares))


def copied_placements(problem: Problem, candidate: Candidate) -> Iterator[PricedPlacement]:
    """Yield placements with an even cut whose stages have a copy of their weights in each of several clusters.

    Each stage has its own clusters, with one class of each, in every way that has room. They have no closed form.
    """
    coeffs, size = problem.coefficients(candidate), candidate.weight_shards
    cut, shares = usual_cut(problem.job, candidate.pp), even_shares(coeffs.total_microbatches, candidate.dp)
    clusters = coeffs.cluster
    rows = [
        tuple(c for c in chosen for _ in range(size))
        for chosen in combinations(range(len(clusters)), candidate.copies)
        if len({clusters[c] for c in chosen}) == candidate.copies
    ]
    if candidate.copies == 1 or len(rows) ** candidate.pp > MAX_COPIED:
        return
    for sites in product(rows, repeat=candidate.pp):
        taken = Counter(c for row in sites for c in row)
        rooms = zip(cut, sites, coeffs.capacity, strict=True)
        fits = all(held <= room[c] for held, row, room in rooms for c in set(row))
        if fits and all(count <= coeffs.group_slots[c] for c, count in taken.items()):
            yield PricedPlacement(inf, Placement(candidate, cut, sites, shares))


def _fill_in_order(coeffs: Coefficients, classes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return stages on the group slots of `classes` in order; each class takes as many whole ones as it can hold."""
    dp, rows, begun = coeffs.candidate.dp, list[tuple[int, ...]](), list[int]()
    for c in classes:
        left = coeffs.group_slots[c]
        if begun:
            taken = min(left, dp - len(begun))
            begun, left = [*begun, *[c] * taken], left - taken
            if len(begun) < dp:
                continue
            rows.append(tuple(sorted(begun)))
        whole = min(left // dp, coeffs.most_stages[c])
        rows += [(c,) * dp] * whole
        begun = [c] * min(left - whole * dp, dp - 1)
    return tuple(rows)
