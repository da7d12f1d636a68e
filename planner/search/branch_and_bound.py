"""Search candidates for the placement with the least closed-form seconds, by best-first branch and bound.

The open branch with the lowest bound is refined first. A branch's refinements get more and more expensive: bounds from
compute alone, bounds that relax the integer program, a greedy placement, and programs at the paces that may still win;
see refinements.py. The best placement found is the incumbent. The search ends when no branch may beat it. The gap
between it and the lowest open bound stays unproved.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from holmes_core.records.job import Job
from planner.cost.fill import fills
from planner.cost.slot import prices_all_cuts
from planner.problem.candidates import (
    RECOMPUTE,
    Candidate,
    enumerate_candidates,
    with_host_states,
    with_instances,
    with_other_fills,
)
from planner.problem.problem import Problem
from planner.search.no_placement import out_of_memory, out_of_time
from planner.search.placement import Placement, PricedPlacement
from planner.search.program_spec import may_cross
from planner.search.refinements import (
    NEED_TIME,
    PROGRAMS,
    Branch,
    SearchState,
    early_bound,
    full_lower_bound,
)
from planner.search.solve import placement_of, solve_preferred
from planner.tolerances import RELATIVE_TOLERANCE

MAX_KEPT = 48  # placements kept for the simulation, which also tries other shapes
SHORTEST_OF = 64  # first branches of the heap, long after the time limit
Status = Literal["optimal", "near optimal", "time limit"]
Progress = Callable[[int, int, float | None], None]
"""Called with candidates settled, candidates in all, and the incumbent's closed-form seconds so far."""


@dataclass(frozen=True)
class SearchResult:
    """The result of the search.

    `found` has placements, best first, and `bound_s` is a lower bound on all placements. `ranked` has the candidates
    that may fit, in ascending order of their lower bounds from compute alone. `sharded` has the placements under ZeRO-3
    that beat all in `found`, if job.yaml allows ZeRO-3. `sharded_bound_s` is a lower bound on all placements under
    ZeRO-3. `misfits` are the candidates that may fit only under ZeRO-3.
    """

    found: tuple[PricedPlacement, ...]
    bound_s: float
    candidates: int
    programs: int
    status: Status
    ranked: tuple[tuple[float, Candidate], ...]
    sharded: tuple[PricedPlacement, ...] = ()
    sharded_bound_s: float = inf
    misfits: tuple[Candidate, ...] = ()


def search(problem: Problem, time_limit_s: float, progress: Progress | None = None) -> SearchResult:
    """Return the placements with the least closed-form seconds, and how certain it is that they have the least.

    Optimizer states go to host memory only if nothing fits otherwise. At `time_limit_s` the search stops with the best
    so far. Within the limit, the result depends only on the input.

    Raises:
        HolmesError: Memory holds no candidate, or nothing was found in time.
    """
    state, candidates = SearchState(problem, time_limit_s), enumerate_candidates(problem.job, problem.fleet)
    ranked = _explore_all(state, candidates, progress)
    may_shard = problem.job.zero is None
    misfits = [each for each in dict.fromkeys(state.misfits) if may_shard and each.fill == "1f1b"]
    sharded = _explore_sharded(state, misfits)
    if state.incumbent is None:
        sharded.open_bounds_s += state.open_bounds_s
        offloaded = with_host_states(problem.job, candidates)
        if offloaded and sharded.incumbent is None and not sharded.open_bounds_s:
            candidates, ranked = offloaded, _explore_all(state, offloaded, progress)
        else:
            state = sharded
    if state.incumbent is None:
        raise out_of_time(time_limit_s) if state.open_bounds_s else out_of_memory(problem, candidates)
    _prefer(state)
    bound_s = min([state.incumbent_s, *state.open_bounds_s])
    return SearchResult(
        _best_first(state),
        bound_s,
        len(candidates),
        state.programs,
        _status(state, bound_s),
        ranked,
        _best_first(sharded) if sharded is not state else (),
        min([sharded.incumbent_s, *sharded.open_bounds_s]),
        tuple(misfits),
    )


def _explore_sharded(state: SearchState, misfits: Sequence[Candidate]) -> SearchState:
    """Search candidates that fit only under ZeRO-3 for placements that beat the incumbent of `state`.

    A candidate that fits without ZeRO-3 is no slower without it. Bounds of candidates that cannot win count as open.
    """
    sharded, branches = state.later(), list[Branch]()
    for misfit in misfits:
        least_s = state.early.compute_s(misfit)  # sharing weights makes no step shorter
        if not state.beats_incumbent(least_s):
            sharded.leave_open(least_s)
        else:
            branches += _sharded_branches(state, misfit)
    sharded.open_bounds_s += [each.lower_bound_s for each in branches if not state.beats_incumbent(each.lower_bound_s)]
    explore(sharded, [each for each in branches if state.beats_incumbent(each.lower_bound_s)])
    return sharded


def _explore_all(
    state: SearchState, candidates: Sequence[Candidate], progress: Progress | None
) -> tuple[tuple[float, Candidate], ...]:
    """Explore the candidates. Return those that may fit, each with its lower bound from compute alone, ascending."""
    branches = [branch for each in candidates if (branch := _first_branch(state, each)) is not None]
    ranked = tuple(sorted((branch.lower_bound_s, branch.candidate) for branch in branches))
    if len(fills(state.problem.job, 2, RECOMPUTE[0])) > 1:
        branches += [other for branch in branches for other in _with_less_fill(state, branch)]
    explore(state, branches, progress)
    return ranked


def explore(state: SearchState, branches: list[Branch], progress: Progress | None = None) -> None:
    """Refine the branch with the lowest bound until no open one may beat the incumbent or the time is over.

    Programs of mixed form, which may take all remaining time, wait until no other branch is open. Programs that come
    up before any placement is found wait too, since placements of other branches show where to search. `state`
    collects the placements, and the bounds of branches left open.
    """
    heapq.heapify(branches)
    waiting: list[Branch] = []
    total, settled = len(branches), 0
    while branches or waiting:
        if branches and state.incumbent is None and state.is_very_late:
            branch = _take_shortest(branches)
        else:
            branch = heapq.heappop(waiting if _are_due(state, branches, waiting) else branches)
        if not state.beats_incumbent(branch.lower_bound_s) or (state.is_late and state.has_enough):
            state.leave_open(min(each.lower_bound_s for each in (branch, *branches[:1], *waiting[:1])))
            break
        for sibling in _siblings(state, branch):
            heapq.heappush(branches, sibling)
        refined = _refine(state, branch)
        while refined is not None and state.incumbent is None and state.is_late:
            refined = _refine(state, refined)  # until it has none left, since any placement will do
        if refined is not None:
            costly = refined.form == "mixed" or state.incumbent is None
            waits = costly and refined.refinements[0] in PROGRAMS
            heapq.heappush(waiting if waits else branches, refined)
            continue
        state.forget(branch)
        settled += 1
        if progress is not None and settled < total:
            progress(settled, total, state.incumbent_s if state.incumbent is not None else None)
    if progress is not None and not state.is_late:
        progress(total, total, state.incumbent_s if state.incumbent is not None else None)


def _take_shortest(branches: list[Branch]) -> Branch:
    """Pop the branch with the shortest pipelines, which are quick to place, from the first few branches of a heap."""
    index = min(range(min(len(branches), SHORTEST_OF)), key=lambda index: branches[index].candidate.pp)
    branches[index], branches[-1] = branches[-1], branches[index]
    branch = branches.pop()
    heapq.heapify(branches)
    return branch


def _are_due(state: SearchState, branches: Sequence[Branch], waiting: Sequence[Branch]) -> bool:
    """Return True if a waiting program is next."""
    if not waiting or not branches:
        return bool(waiting)
    return state.beats_incumbent(waiting[0].lower_bound_s) and not state.beats_incumbent(branches[0].lower_bound_s)


def _refine(state: SearchState, branch: Branch) -> Branch | None:
    """Return the branch after its next refinement; None if that closed it, or no time is left for it."""
    if branch.refinements[0] is full_lower_bound and state.is_late:
        return branch._replace(refinements=branch.refinements[1:])
    if not state.is_late or branch.refinements[0] not in NEED_TIME:
        return branch.refine(state)
    state.leave_open(branch.lower_bound_s)
    return None


def _first_branch(state: SearchState, candidate: Candidate) -> Branch | None:
    """Return a candidate's branch in blocks, with more recomputation if memory is too small; None if nothing fits."""
    job, fitting = state.problem.job, candidate
    while not state.early.fits(fitting):
        state.misfits.append(fitting)
        more = state.early.more_recompute(fitting)
        if more is None:
            return None
        fitting = more
    bound_s = state.early.compute_s(fitting)  # no higher than that of its siblings, which are added once it is refined
    if not fitting.divides(job.batch_parts) and len(state.problem.fleet.classes) > 1:
        bound_s = min(bound_s, state.early.whole_replicas_s(fitting))  # slow replicas may run fewer micro-batches
    if fitting.weight_shards > 1:
        bound_s = min([bound_s, *(each.lower_bound_s for each in _sharded_over_clusters(state, fitting))])
    return Branch(bound_s, fitting, "blocks", state.refinements_of("blocks"))


def _with_less_fill(state: SearchState, branch: Branch) -> Iterator[Branch]:
    """Yield the candidate's branches under schedules that may waste less during fill and drain."""
    for candidate in with_other_fills(state.problem.job, branch.candidate)[1:]:
        other = _first_branch(state, candidate)
        if other is not None and other.lower_bound_s < branch.lower_bound_s:
            yield other


def _siblings(state: SearchState, branch: Branch) -> Iterator[Branch]:
    """Yield a candidate's other branches once its first one is refined, since their bounds are no lower."""
    if branch.refinements[0] is not early_bound or branch.form != "blocks":
        return
    job, candidate = state.problem.job, branch.candidate
    if candidate.weight_shards > 1 and job.zero != 3:
        return  # `_sharded_branches` yields all of them
    more = state.early.more_recompute(candidate)
    if more is not None and (first := _first_branch(state, more)) is not None:
        yield first
    if len(state.problem.fleet.classes) > 1 and candidate.dp > 1:
        over_clusters = [*_sharded_over_clusters(state, candidate)] if candidate.weight_shards > 1 else []
        yield from over_clusters
        if not over_clusters:
            yield _in_whole_replicas(state, candidate)
        if candidate.weight_shards > 1:
            return
        for each in with_instances(job, candidate, len(state.problem.fleet.cluster_names)):
            if state.early.fits(each):
                yield _in_whole_replicas(state, each)
        if candidate.pp > 1 and state.several_clusters and may_cross(state.problem, candidate):
            bound_s = branch.lower_bound_s + state.early.crossing_sync_s(candidate)
            yield Branch(bound_s, candidate, "mixed", state.refinements_of("mixed"))


def _sharded_branches(state: SearchState, misfit: Candidate) -> Iterator[Branch]:
    """Yield the branches under ZeRO-3 of a candidate that does not fit into memory otherwise.

    They are in blocks, or with whole replicas over several clusters that each hold the weights once.
    """
    for sharded in state.early.with_shared_weights(misfit):
        if sharded.weight_shards == sharded.dp:
            yield Branch(state.early.compute_s(sharded), sharded, "blocks", state.refinements_of("blocks"))
    yield from _sharded_over_clusters(state, misfit)


def _sharded_over_clusters(state: SearchState, candidate: Candidate) -> Iterator[Branch]:
    """Yield the candidate's branches with replicas over 2, 3 ... clusters, sharded inside each."""
    for sharded in state.early.with_shared_weights(candidate):
        if sharded.weight_shards < sharded.dp:
            yield _in_whole_replicas(state, sharded)


def _in_whole_replicas(state: SearchState, candidate: Candidate) -> Branch:
    bound_s = state.early.whole_replicas_s(candidate)
    return Branch(bound_s, candidate, "whole replicas", state.refinements_of("whole replicas"))


def _prefer(state: SearchState) -> None:
    """Replace the best placements that programs found by the preferred ones among their equals."""
    best_first = sorted(state.found, key=lambda key: state.found[key].objective_s)
    for key in best_first[:MAX_KEPT]:
        spec, limit_s = state.specs.get(key), state.program_limit_s
        if spec is None or limit_s <= 0:
            continue
        spec = replace(spec, at_most_s=state.found[key].objective_s * (1 + RELATIVE_TOLERANCE))
        solution = solve_preferred(spec, limit_s)
        found = placement_of(spec, solution)
        if found is not None and solution.status == "optimal":
            state.found[key] = found


def _best_first(state: SearchState) -> tuple[PricedPlacement, ...]:
    """Return the best placements, at most `MAX_KEPT`. Among equals, the one with the least recomputation is first.

    A placement found under several fills is listed once, at its best position.
    """
    keyed = sorted(
        (found.objective_s, RECOMPUTE.index(key[0].recompute), key, found) for key, found in state.found.items()
    )
    once: dict[Placement, PricedPlacement] = {}
    for *_, found in keyed:
        once.setdefault(replace(found.placement, candidate=found.placement.candidate._replace(fill="1f1b")), found)
    return tuple(once.values())[:MAX_KEPT]


def _status(state: SearchState, bound_s: float) -> Status:
    """Return the status, which says how certain it is that the incumbent is the best."""
    if bound_s >= state.incumbent_s * (1 - RELATIVE_TOLERANCE):
        assert state.incumbent is not None
        return proof(state.problem.job, state.incumbent[0].pp, 0.0, "optimal")
    return "time limit" if state.is_late or state.ran_out else "near optimal"


def proof(job: Job, pp: int, gap: float, status: Status) -> Status:
    """Return the status of a plan with `pp` stages that is `gap` above the bound, given the search's `status`.

    Nothing is proved if first layers have no experts and therefore some cuts were not priced exactly.
    """
    if not prices_all_cuts(job, pp):
        return "near optimal" if status == "optimal" else status
    return "optimal" if gap == 0 else status
