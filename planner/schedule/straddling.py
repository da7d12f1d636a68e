"""Placements whose stages straddle clusters, which the search leaves out where the closed form rules them out.

The closed form counts the whole fill of 1F1B; interleaving, which does with less of it, may make one of them the best.
Clusters in some order give their group slots to one stage after another, with an even cut: a start to improve on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import inf

from planner.problem.candidates import Candidate
from planner.problem.coefficients import Coefficients
from planner.problem.problem import Problem
from planner.schedule.any_schedule_bound import AnyScheduleBounds
from planner.search.placement import Placement, PricedPlacement, even_shares, usual_cut

MAX_CLUSTERS = 3  # that are tried in every order
MAX_SLOTS = 64  # of a fleet; on larger ones a cluster that has no room for a stage is a small part
MAX_CANDIDATES = 16  # with the lowest bounds


def straddling_placements(
    problem: Problem, candidates: Sequence[Candidate], within_s: float
) -> Iterator[PricedPlacement]:
    """Yield placements of candidates that may take less than `within_s` under some schedule, without closed forms."""
    fleet = problem.fleet
    if not 1 < len(fleet.cluster_names) <= MAX_CLUSTERS or fleet.num_group_slots(1) > MAX_SLOTS:
        return
    bounds = AnyScheduleBounds(problem)
    straddle = (each for each in candidates if each.pp > 1 and each.dp > 1 and each.weight_shards == 1)
    near = (each for each in straddle if bounds.work_s(each) < within_s)  # the cheaper bound first
    may_win = [(bound_s, each) for each in near if (bound_s := bounds.candidate_s(each)) < within_s]
    for _, candidate in sorted(may_win)[:MAX_CANDIDATES]:
        for placement in dict.fromkeys(_placements(problem, candidate)):
            yield PricedPlacement(inf, placement)


def _placements(problem: Problem, candidate: Candidate) -> Iterator[Placement]:
    """One for each order of the clusters in which a stage straddles some."""
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
            yield Placement(candidate, cut, sites, shares)


def _fill_in_order(coeffs: Coefficients, classes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Stages on group slots of `classes` one after another: of each as many whole ones as it can hold by itself."""
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
