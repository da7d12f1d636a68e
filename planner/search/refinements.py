"""Branches of the search and their refinements, in the order of their cost.

A branch contains all placements of one candidate in one form. A refinement raises its lower bound, finds placements in
it, or both. It returns the new bound and adds the placements to the `SearchState`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from math import inf
from typing import Literal, NamedTuple

from holmes_core.records.job import Job
from planner.problem.candidates import Candidate, has_fixed_cut
from planner.problem.problem import Problem
from planner.search.cluster_sets import MAX_CLUSTERS, ClusterSets
from planner.search.crossing_room import CrossingRoom
from planner.search.early_bounds import EarlyBounds
from planner.search.greedy import PricedBlocks, place_cut, place_greedily
from planner.search.lower_bounds import LowerBounds
from planner.search.placement import PricedPlacement, from_blocks, usual_cut
from planner.search.program_spec import ProgramSpec, make_sites
from planner.search.solve import placement_of, solve
from planner.search.whole_replicas import place_whole_replicas
from planner.tolerances import RELATIVE_TOLERANCE

MAX_CLUSTERS_FOR_A_PROOF = 4  # with more, the search stops at a placement this close to the bound:
MAX_CLASSES_FOR_A_PROOF = 8  # likewise
MAX_LAYERS_FOR_A_PROOF = 256  # likewise
ACCEPTED_GAP = 0.01
PROGRAM_SHARE = 1 / 4  # of the time limit, at most, for one branch's programs, so that a hard one leaves time
MIN_PROGRAM_S = 0.1  # for a program to find anything, if nothing was found yet
FEW, MAX_LATE_LOOKS = 8, 100  # placements to begin with, and branches tried for them after the time limit
MAX_LATE_S = 0.2  # after the time limit; then the first placement is enough
GREEDY_PACES = 3  # paces tried without a program
MAX_SITES = 64  # of a program: with more, writing it down takes too long
PACES_AT_ONCE = 8  # in one program, and bounded before there is an incumbent

Form = Literal["blocks", "mixed", "whole replicas"]
"""Blocks: each stage is in one cluster, and stages on the same classes are consecutive. Mixed: the same, but at least
one stage is over several clusters. Whole replicas: each replica has all its stages in one class."""
Key = tuple[Candidate, Form]
Refinement = Callable[["SearchState", "Branch"], "float | None"]
"""Return a lower bound on the branch's step, in seconds; None if it closes the branch."""


class Branch(NamedTuple):
    """All placements of one candidate in one form: a lower bound on their step, and the remaining refinements.

    Branches compare by bound, then candidate, then form; no two open ones share both candidate and form.
    """

    lower_bound_s: float
    candidate: Candidate
    form: Form
    refinements: tuple[Refinement, ...]

    @property
    def key(self) -> Key:
        """The key that distinguishes it from all other branches."""
        return self.candidate, self.form

    def refine(self, state: SearchState) -> Branch | None:
        """Return the branch after its next refinement, its bound no lower than before; None if that closed it."""
        bound_s = self.refinements[0](state, self)
        if bound_s is None:
            return None
        return self._replace(lower_bound_s=max(self.lower_bound_s, bound_s), refinements=self.refinements[1:])


class SearchState:
    """The placements a search found, the bounds it left open, and the time it has.

    `incumbent_s` are the seconds of the best placement so far, infinite before there is one. `found` has the best of
    each branch, `specs` the programs that found some of them. `open_bounds_s` are the lower bounds of branches that
    were left open. `misfits` are candidates that memory does not hold in blocks.
    """

    def __init__(self, problem: Problem, time_limit_s: float) -> None:
        self.problem, self.early = problem, problem.once(EarlyBounds)
        self.incumbent_s = inf
        self.incumbent: Key | None = None
        self.found: dict[Key, PricedPlacement] = {}
        self.specs: dict[Key, ProgramSpec] = {}
        self.open_bounds_s: list[float] = []
        self.misfits: list[Candidate] = []
        self.programs = 0
        clusters = len({each.cluster for each in problem.fleet.classes})
        self.gap = RELATIVE_TOLERANCE if _may_be_proved(problem, clusters) else ACCEPTED_GAP
        self.several_clusters = clusters > 1
        self.refinements_of = cache(partial(refinements_of, problem.job))
        self._late_looks, self.ran_out = 0, False
        self._time_limit_s, self._deadline_s = time_limit_s, time.monotonic() + time_limit_s
        self._relaxations: dict[Key, LowerBounds] = {}
        self._cluster_sets: dict[Key, ClusterSets] = {}

    def later(self) -> SearchState:
        """Return a search for placements that beat the incumbent, in the remaining time."""
        other = SearchState(self.problem, max(0.0, self._deadline_s - time.monotonic()))
        other.early, other.incumbent_s, other.incumbent = self.early, self.incumbent_s, self.incumbent
        return other

    def beats_incumbent(self, bound_s: float) -> bool:
        """Return True if a placement of `bound_s` would beat the incumbent by more than the accepted gap."""
        return bound_s < self.incumbent_s * (1 - self.gap)

    @property
    def is_late(self) -> bool:
        """True if the time limit is over."""
        return time.monotonic() > self._deadline_s

    @property
    def is_very_late(self) -> bool:
        """True if the first placement is enough."""
        return time.monotonic() > self._deadline_s + MAX_LATE_S

    @property
    def has_enough(self) -> bool:
        """True if a late search may stop: with the first few placements, or with one after some more attempts."""
        self._late_looks += 1
        looked = self._late_looks > MAX_LATE_LOOKS or self.is_very_late
        return self.incumbent is not None and (looked or len(self.found) >= FEW)

    @property
    def program_limit_s(self) -> float:
        """Seconds one more program may take: not beyond the deadline, and not all of the time before it."""
        return min(self._deadline_s - time.monotonic(), self._time_limit_s * PROGRAM_SHARE)

    def relaxation(self, branch: Branch) -> LowerBounds:
        """Return the bounds that relax a branch's program. They are computed once."""
        if branch.key not in self._relaxations:
            coeffs = self.problem.coefficients(branch.candidate)
            self._relaxations[branch.key] = LowerBounds(coeffs, mixed=branch.form == "mixed")
        return self._relaxations[branch.key]

    def cluster_sets(self, branch: Branch) -> ClusterSets | None:
        """Return a branch's bounds by the clusters it uses, computed once; None if they do not apply."""
        bounds = self.relaxation(branch)
        if bounds.mixed or not 1 < len(bounds.groups) <= MAX_CLUSTERS:
            return None
        if branch.key not in self._cluster_sets:
            self._cluster_sets[branch.key] = ClusterSets(bounds)
        return self._cluster_sets[branch.key]

    def leave_open(self, bound_s: float) -> None:
        """Record that placements of `bound_s` or more were not searched."""
        self.open_bounds_s.append(bound_s)

    def leave_slower_open(self) -> None:
        """Record that placements that do not beat the incumbent were not searched."""
        if self.gap > RELATIVE_TOLERANCE:
            self.leave_open(self.incumbent_s * (1 - self.gap))

    def forget(self, branch: Branch) -> None:
        """Drop the relaxation of a branch that is no longer refined."""
        self._relaxations.pop(branch.key, None)
        self._cluster_sets.pop(branch.key, None)

    def keep(self, key: Key, found: PricedPlacement | None) -> bool:
        """Store a placement if it is the best of its branch. Return True if it is the new incumbent."""
        if found is None:
            return False
        known = self.found.get(key)
        if known is None or found.objective_s < known.objective_s * (1 - RELATIVE_TOLERANCE):
            self.found[key] = found
        if found.objective_s < self.incumbent_s * (1 - RELATIVE_TOLERANCE):
            self.incumbent_s, self.incumbent = found.objective_s, key
            return True
        return False


def _may_be_proved(problem: Problem, clusters: int) -> bool:
    """Return True if a search to the end is short enough."""
    few = clusters <= MAX_CLUSTERS_FOR_A_PROOF and len(problem.fleet.classes) <= MAX_CLASSES_FOR_A_PROOF
    return few and problem.job.model.num_layers <= MAX_LAYERS_FOR_A_PROOF


def early_bound(state: SearchState, branch: Branch) -> float | None:
    """Return a lower bound from compute alone, for stages of whole layers."""
    return state.early.whole_layers_s(branch.candidate, branch.form == "mixed")


def exchange_bound(state: SearchState, branch: Branch) -> float | None:
    """Return a lower bound from compute, memory, edges, and one layer's part of each exchange."""
    bound_s = state.relaxation(branch).exchange_bound_s
    if bound_s is None and branch.form == "blocks":
        state.misfits.append(branch.candidate)
    return bound_s


def full_lower_bound(state: SearchState, branch: Branch) -> float | None:
    """Return a lower bound like `exchange_bound`, with the least exposed part of the exchanges of all layers.

    Edges and fast classes must be in the same set of clusters.
    """
    bounds, sets = state.relaxation(branch), state.cluster_sets(branch)
    full_s = bounds.full_bound_s
    if full_s is None or sets is None:
        return full_s
    least_s = sets.least_s(bounds.paces_s[bounds.first_pace], bounds.memory)
    return None if least_s == inf else max(full_s, least_s + bounds.least_fitting_sync_s)


def greedy_placements(state: SearchState, branch: Branch) -> float:
    """Find placements without a program at the first paces; the bound stays the same."""
    bounds = state.relaxation(branch)
    for pace_s in bounds.paces_s[bounds.first_pace : bounds.first_pace + GREEDY_PACES]:
        if branch.key in state.found and (state.is_late or not state.beats_incumbent(bounds.from_pace_s(pace_s))):
            break
        _keep_blocks(state, branch, place_greedily(bounds, pace_s))
    return branch.lower_bound_s


def fixed_cut_placement(state: SearchState, branch: Branch) -> float:
    """Find a placement of the cut that job.yaml fixes, without a program; the bound stays the same."""
    coeffs, layers = state.problem.coefficients(branch.candidate), usual_cut(state.problem.job, branch.candidate.pp)
    _keep_blocks(state, branch, place_cut(coeffs, layers))
    return branch.lower_bound_s


def _keep_blocks(state: SearchState, branch: Branch, placed: PricedBlocks | None) -> None:
    """Store the placement found without a program, if any."""
    if placed is not None:
        total = state.problem.coefficients(branch.candidate).total_microbatches
        placement = from_blocks(branch.candidate, total, placed.blocks)
        state.keep(branch.key, PricedPlacement(placed.seconds, placement))


def open_paces(state: SearchState, branch: Branch) -> float | None:
    """Return the least lower bound of all paces that may beat the incumbent; without one, of the first few paces."""
    bounds = state.relaxation(branch)
    found: list[float] = []
    for pace_s in bounds.paces_s[bounds.first_pace :]:
        from_s = bounds.from_pace_s(pace_s)
        if state.incumbent is None and len(found) >= PACES_AT_ONCE:
            break
        if not state.beats_incumbent(from_s):
            state.leave_open(from_s)
            break
        bound_s = _at_pace_s(state, branch, pace_s)
        if state.beats_incumbent(bound_s):
            found.append(bound_s)
        else:
            state.leave_open(bound_s)
    return min(found, default=None)


def _at_pace_s(state: SearchState, branch: Branch, pace_s: float) -> float:
    """Return a lower bound on the step of placements of that pace. It may be low if it already excludes them."""
    bounds, sets = state.relaxation(branch), state.cluster_sets(branch)
    limits = bounds.within(pace_s)
    bound_s = bounds.without_sync_s(pace_s, limits) + bounds.least_fitting_sync_s
    if sets is not None and state.beats_incumbent(bound_s):
        bound_s = max(bound_s, sets.least_s(pace_s, limits) + bounds.least_fitting_sync_s)
    if state.beats_incumbent(bound_s):
        bound_s += bounds.least_sync_s(limits) - bounds.least_fitting_sync_s
    return bound_s


def programs(state: SearchState, branch: Branch) -> None:
    """Solve the programs of all paces that may beat the incumbent, several paces at once, fastest first."""
    bounds, crossing = state.relaxation(branch), branch.form == "mixed"
    if len(make_sites(bounds.coeffs, crossing)) > MAX_SITES:
        state.leave_open(branch.lower_bound_s)
        return
    room = CrossingRoom(bounds.coeffs) if crossing else None
    for at in range(bounds.first_pace, len(bounds.paces_s), PACES_AT_ONCE):
        paces = bounds.paces_s[at : at + PACES_AT_ONCE]
        from_s = bounds.from_pace_s(paces[0])
        if state.is_late or not state.beats_incumbent(from_s):
            state.leave_open(from_s)
            return
        bounds_s = {pace_s: _open_s(state, branch, room, pace_s) for pace_s in paces}
        bound_of = {pace_s: bound_s for pace_s, bound_s in bounds_s.items() if bound_s is not None}
        if bound_of:
            slow_s, slowest_s = min(bound_of), max(bound_of)
            least_sync_s = bounds.least_sync_s(bounds.within(slowest_s))
            spec = ProgramSpec(bounds.coeffs, slow_s, slowest_s, None, least_sync_s, crossing)
            _solve(state, branch.key, spec, min(bound_of.values()))


def _open_s(state: SearchState, branch: Branch, room: CrossingRoom | None, pace_s: float) -> float | None:
    """Return a lower bound on placements of that pace, in `room` if a stage is over several clusters.

    None if no placement may beat the incumbent.
    """
    bounds, within_s = state.relaxation(branch), state.incumbent_s * (1 - state.gap)
    bound_s = _at_pace_s(state, branch, pace_s)
    if bound_s >= within_s:
        state.leave_open(bound_s)
        return None
    if room is None or state.incumbent is None:
        return bound_s
    if room.may_hold(pace_s, within_s - bounds.without_sync_s(pace_s, bounds.within(pace_s))):
        return bound_s
    state.leave_slower_open()
    return None


def fixed_cut_program(state: SearchState, branch: Branch) -> None:
    """Solve the one program of the cut that job.yaml fixes, at any pace."""
    coeffs, fixed_layers = state.problem.coefficients(branch.candidate), fixed_cut(state.problem.job, branch.candidate)
    spec = ProgramSpec(coeffs, fixed_layers=fixed_layers, crossing=branch.form == "mixed")
    _solve(state, branch.key, spec, branch.lower_bound_s)


def whole_replicas(state: SearchState, branch: Branch) -> None:
    """Find the best placement with each replica in one class."""
    coeffs = state.problem.coefficients(branch.candidate)
    state.keep(branch.key, place_whole_replicas(coeffs, fixed_cut(state.problem.job, branch.candidate)))


BOUNDS = (early_bound, exchange_bound, full_lower_bound)
PROGRAMS = frozenset({programs, fixed_cut_program})
NEED_TIME = PROGRAMS | {open_paces}
"""Refinements that do not run once the time is over, so that the branch stays open; nor does `full_lower_bound`."""


def refinements_of(job: Job, form: Form) -> tuple[Refinement, ...]:
    """Return all refinements of a branch, in order."""
    if form == "whole replicas":
        return (whole_replicas,)
    if has_fixed_cut(job):
        return (*BOUNDS, fixed_cut_program) if form == "mixed" else (*BOUNDS, fixed_cut_placement, fixed_cut_program)
    return (*BOUNDS, open_paces, programs) if form == "mixed" else (*BOUNDS, greedy_placements, open_paces, programs)


def fixed_cut(job: Job, candidate: Candidate) -> tuple[int, ...] | None:
    """Return the cut by pipeline rank that job.yaml or its engine fixes, if any."""
    return usual_cut(job, candidate.pp) if has_fixed_cut(job) else None


def _solve(state: SearchState, key: Key, spec: ProgramSpec, bound_s: float) -> None:
    """Solve one program for placements that beat the incumbent; `bound_s` is a known lower bound on them."""
    if state.incumbent is not None:
        spec = replace(spec, at_most_s=state.incumbent_s * (1 - state.gap))
        state.leave_slower_open()
    solution = solve(spec, max(MIN_PROGRAM_S, state.program_limit_s))
    state.programs += 1
    if solution.status == "time limit":
        state.ran_out = True
        state.leave_open(max(bound_s, solution.bound_s or 0.0))
    if state.keep(key, placement_of(spec, solution)):
        state.specs[key] = spec
