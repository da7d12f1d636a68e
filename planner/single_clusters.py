"""Placements in each single cluster, for a search that ended before it could prove that several do better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from holmes_core.errors import HolmesError
from planner.problem.fleet import Fleet, Hardware
from planner.problem.problem import Problem
from planner.search.branch_and_bound import SearchResult, search
from planner.search.placement import PricedPlacement
from planner.time_left import TimeLeft

NO_TIME_S = 0.0  # a search still finds a placement, if any fits
BEST = 3  # placements of each cluster
SLOTS_WHEN_LATE = 256  # in clusters that are always searched: a few tenths of a second
MAX_LATE = 8  # placements of the search that there is time to simulate


def with_single_clusters(problem: Problem, result: SearchResult, left: TimeLeft) -> SearchResult:
    """Return the result, plus the first placements of a search in each single cluster, equal ones once.

    If no time is `left`, only the best of the result remain. The largest cluster comes first. Clusters that no time is
    left for are skipped, except for the first few slots.
    """
    several = len(problem.fleet.cluster_names) > 1
    best = result.found[:MAX_LATE] if left.is_over else result.found
    return replace(result, found=(*best, *(_in_single_clusters(problem, left) if several else ())))


def _in_single_clusters(problem: Problem, left: TimeLeft) -> Iterator[PricedPlacement]:
    searched = set[tuple[tuple[Hardware, int], ...]]()
    slots, looked_at = dict.fromkeys(problem.fleet.cluster_names, 0), 0
    for each in problem.fleet.classes:
        slots[each.cluster] += each.num_group_slots(1)
    for name in sorted(slots, key=lambda name: -slots[name]):
        of = [index for index, each in enumerate(problem.fleet.classes) if each.cluster == name]
        classes = tuple(problem.fleet.classes[index] for index in of)
        kind = tuple((replace(each.hardware, cluster=""), len(each.hosts)) for each in classes)
        if kind in searched or (left.is_over and looked_at + slots[name] > SLOTS_WHEN_LATE):
            continue
        searched.add(kind)
        looked_at += slots[name]
        try:
            best = search(replace(problem, fleet=Fleet(classes)), NO_TIME_S).found[:BEST]
        except HolmesError:  # too small; another cluster may be larger
            continue
        for found in best:
            sites = tuple(tuple(of[c] for c in row) for row in found.placement.sites)
            yield replace(found, placement=replace(found.placement, sites=sites))
