"""The search over candidates: the cheapest bound first, until no bound is below the best placement found.

A candidate is looked at in two ways: with its stages in blocks, which the pipeline joins, and spread, each replica in
one class. What a look costs rises in steps, and only those are taken whose bound is still below the best: the bounds of
early_bounds.py, those of lower_bounds.py, a greedy placement, integer programs at the paces that may still win.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.job import Job
from holmes_core.units import format_memory
from planner.problem.candidates import RECOMPUTE, Candidate, enumerate_candidates, more_recompute
from planner.problem.coefficients import stage_memory_bytes
from planner.problem.fleet import Fleet
from planner.problem.problem import Problem
from planner.search.closed_form import blocks_step_s, site_stage_s
from planner.search.early_bounds import QuickBounds
from planner.search.greedy import place_greedily
from planner.search.lower_bounds import Bounds
from planner.search.placement import PricedPlacement, from_blocks, usual_cut
from planner.search.program_spec import ProgramSpec
from planner.search.solve import Solution, solve, solve_preferred, write_lp
from planner.search.whole_replicas import spread
from planner.tolerances import RELATIVE_TOLERANCE

MOST_CLUSTERS_FOR_A_PROOF = 4  # with more, the search stops at a placement this close to the bound:
ACCEPTED_GAP = 0.01
PROGRAM_SHARE = 1 / 4  # of the time limit, at most, for one candidate's programs: a hard one must not use up all
LEAST_PROGRAM_S = 0.1  # where nothing was found yet, for a program to find anything
GREEDY_PACES = 3  # paces tried without a program
RUNNERS_UP = 48  # placements kept for the simulation, which the closed form may misjudge by a tenth
PACES_AT_ONCE = 8  # in one program, and bounded before the first placement is known
LOOKS_BEYOND = 30  # candidates looked at, after the answer, to find that many
Way = Literal["blocks", "mixed", "spread"]
Progress = Callable[[int, int, float | None], None]
"""Called with candidates settled, candidates in all, and the best closed-form seconds so far."""


class Look(NamedTuple):
    """One way to look at a candidate, the seconds it cannot beat, and how many steps were taken.

    Looks come in this order; no two that are open at once share candidate and way.
    """

    bound_s: float
    candidate: Candidate
    way: Way
    step: int = 0
    bounds: Bounds | None = None


@dataclass(frozen=True)
class SearchResult:
    """What the search found: the best placements first; `bound_s` below all there are."""

    found: tuple[PricedPlacement, ...]
    bound_s: float
    candidates: int
    programs: int
    status: Literal["optimal", "near optimal", "time limit"]
    ranked: tuple[tuple[float, Candidate], ...]


def search(
    problem: Problem, time_limit_s: float, progress: Progress | None = None, lp: Path | None = None
) -> SearchResult:
    """The placements of least closed-form seconds, and how sure that is.

    Stops at `time_limit_s` with the best so far; within the limit the answer depends on the input alone. `lp` names a
    file for the last program. Raises HolmesError when memory holds no candidate, or nothing was found in time.
    """
    return _Search(problem, time_limit_s, progress).run(lp)


class _Search:
    """One search: what was found so far, and what it took."""

    def __init__(self, problem: Problem, time_limit_s: float, progress: Progress | None) -> None:
        self._problem, self._limit_s, self._progress = problem, time_limit_s, progress
        self._job, self._fleet = problem.job, problem.fleet
        self._deadline_s = time.monotonic() + time_limit_s
        self._quick = QuickBounds(problem)
        clusters = len({each.cluster for each in problem.fleet.classes})
        self._tolerance = RELATIVE_TOLERANCE if clusters <= MOST_CLUSTERS_FOR_A_PROOF else ACCEPTED_GAP
        self._crosses = clusters > 1
        self._found: dict[tuple[Candidate, Way], PricedPlacement] = {}
        self._specs: dict[tuple[Candidate, Way], ProgramSpec] = {}
        self._best: tuple[float, Candidate, Way] | None = None
        self._programs = 0

    def run(self, lp: Path | None) -> SearchResult:
        """Looks until all bounds are above the best."""
        candidates = enumerate_candidates(self._job, self._fleet)
        looks = [look for each in candidates if (look := self._first_look(each)) is not None]
        ranked = tuple(sorted((look.bound_s, look.candidate) for look in looks))
        open_s = self._look_at_all(looks)
        if self._best is None:
            raise _out_of_time(self._limit_s) if open_s else _out_of_memory(self._job, self._fleet, candidates)
        self._prefer()
        self._certify()
        if lp is not None:
            write_lp(self._last_spec(), lp)
        found = sorted(self._found.items(), key=lambda item: (item[1].objective_s, _recomputed(item[0][0]), item[0]))
        bound_s = min([self._best[0], *open_s])
        late = time.monotonic() > self._deadline_s
        status: Literal["near optimal", "time limit"] = "time limit" if late else "near optimal"
        solved = bound_s >= self._best[0] * (1 - RELATIVE_TOLERANCE)
        return SearchResult(
            tuple(each for _, each in found[:RUNNERS_UP]),
            bound_s,
            len(candidates),
            self._programs,
            "optimal" if solved else status,
            ranked,
        )

    def _look_at_all(self, looks: list[Look]) -> list[float]:
        """Takes the cheapest look's next step until none may win; the bounds that were left open."""
        heapq.heapify(looks)
        open_s: list[float] = []
        settled = beyond = 0
        total = len(looks)
        while looks:
            look = heapq.heappop(looks)
            closed = self._is_closed(look.bound_s)
            if closed and look.way == "mixed":
                open_s.append(look.bound_s)
                continue
            beyond += closed and look.step == 1
            if closed and (len(self._found) >= RUNNERS_UP or beyond > LOOKS_BEYOND):
                return [*open_s, look.bound_s]
            late = time.monotonic() > self._deadline_s
            if late and self._best is not None:
                return [*open_s, look.bound_s]
            if look.step > 3 and (closed or late):
                open_s.append(look.bound_s)
                following: tuple[Look, ...] = ()
            else:
                following = self._step(look, open_s)
            for each in (*self._other_ways(look), *following):
                heapq.heappush(looks, each)
            if following:
                continue
            settled += 1
            if self._progress is not None:
                self._progress(settled, total, self._best[0] if self._best else None)
        return open_s

    def _is_closed(self, bound_s: float) -> bool:
        return self._best is not None and bound_s >= self._best[0] * (1 - self._tolerance)

    def _first_look(self, candidate: Candidate) -> Look | None:
        """The look at a candidate in any way; where memory is too small, with more recomputation; else None."""
        fitting: Candidate | None = candidate
        while fitting is not None and not self._quick.fits(fitting):
            fitting = more_recompute(self._job, fitting)
        return Look(self._quick.compute_s(fitting), fitting, "blocks") if fitting is not None else None

    def _other_ways(self, look: Look) -> Iterator[Look]:
        """After the first look at a candidate, the others, whose bounds are higher: spread, mixed, recomputing more."""
        if look.way != "blocks" or look.step > 0:
            return
        candidate = look.candidate
        more = more_recompute(self._job, candidate)
        if more is not None and (first := self._first_look(more)) is not None:
            yield first
        if len(self._fleet.classes) > 1 and candidate.dp > 1:
            yield Look(self._quick.spread_s(candidate), candidate, "spread")
            if candidate.pp > 1 and self._crosses:
                yield Look(look.bound_s + self._quick.crossing_sync_s(candidate), candidate, "mixed")

    def _step(self, look: Look, open_s: list[float]) -> tuple[Look, ...]:
        """Takes the next step of a look; the look again unless it was the last."""
        if look.way == "spread":
            self._keep(look, spread(self._problem.coefficients(look.candidate), self._fixed_layers(look)))
            return ()
        if look.step == 0:
            least_s = self._quick.least_s(look.candidate, look.way == "mixed")
            return _raised(look._replace(step=1), least_s)
        if look.bounds is None:
            bounds = Bounds(self._problem.coefficients(look.candidate), mixed=look.way == "mixed")
            return _raised(look._replace(step=2, bounds=bounds), bounds.quick_s)
        if look.step == 2:
            return _raised(look._replace(step=3), look.bounds.least_s)
        if look.step == 3:
            self._place_greedily(look)
            return (look._replace(step=4),)
        if look.step == 4 and self._job.parallel.layers is None:
            paces = self._open_paces(look.bounds)
            return _raised(look._replace(step=5), min(paces)[0] if paces else None)
        self._solve(look, open_s)
        return ()

    def _keep(self, look: Look, found: PricedPlacement | None) -> bool:
        """Remembers a placement if it is the look's best; says whether it is the best of all."""
        if found is None:
            return False
        key = (look.candidate, look.way)
        known = self._found.get(key)
        if known is None or found.objective_s < known.objective_s * (1 - RELATIVE_TOLERANCE):
            self._found[key] = found
        if self._best is None or found.objective_s < self._best[0] * (1 - RELATIVE_TOLERANCE):
            self._best = (found.objective_s, look.candidate, look.way)
            return True
        return False

    def _fixed_layers(self, look: Look) -> tuple[int, ...] | None:
        """The cut by pipeline rank that job.yaml fixes."""
        return usual_cut(self._job, look.candidate.pp) if self._job.parallel.layers is not None else None

    def _place_greedily(self, look: Look) -> None:
        if look.way == "mixed" or self._job.parallel.layers is not None or look.bounds is None:
            return
        first = look.bounds.first_pace
        for pace_s in look.bounds.paces_s[first : first + GREEDY_PACES]:
            if self._is_closed(look.bounds.from_pace(pace_s)) and (look.candidate, look.way) in self._found:
                return
            blocks = place_greedily(look.bounds, pace_s)
            if blocks is not None:
                m = look.bounds.coeffs.num_microbatches
                self._keep(look, PricedPlacement(blocks.seconds, from_blocks(look.candidate, m, blocks.blocks)))

    def _open_paces(self, bounds: Bounds) -> list[tuple[float, float]]:
        """(bound, pace) of the paces at which the best may be beaten; while nothing is known, of the first few."""
        found: list[tuple[float, float]] = []
        for pace_s in bounds.paces_s[bounds.first_pace :]:
            if self._is_closed(bounds.from_pace(pace_s)) or (self._best is None and len(found) >= PACES_AT_ONCE):
                break
            bound_s = bounds.at(pace_s)
            if not self._is_closed(bound_s):
                found.append((bound_s, pace_s))
        return found

    def _solve(self, look: Look, open_s: list[float]) -> None:
        """Solves the programs of a look, one a pace, and notes what the time limit left open."""
        assert look.bounds is not None
        crossing = look.way == "mixed"
        if self._job.parallel.layers is not None:
            spec = ProgramSpec(look.bounds.coeffs, fixed_layers=self._fixed_layers(look), crossing=crossing)
            self._ask(look, spec, look.bound_s, open_s)
            return
        at = look.bounds.first_pace
        while at < len(look.bounds.paces_s):
            paces = look.bounds.paces_s[at : at + PACES_AT_ONCE]
            from_s = look.bounds.from_pace(paces[0])
            if self._is_closed(from_s):
                return
            if time.monotonic() > self._deadline_s:
                open_s.append(from_s)
                return
            paces = [pace_s for pace_s in paces if not self._is_closed(look.bounds.from_pace(pace_s))]
            bounds_s = [look.bounds.at(pace_s) for pace_s in paces]
            if not self._is_closed(min(bounds_s)):
                least_sync_s = look.bounds.least_sync_s(look.bounds.within(paces[-1]))
                spec = ProgramSpec(look.bounds.coeffs, paces[0], paces[-1], None, least_sync_s, crossing)
                self._ask(look, spec, min(bounds_s), open_s)
            at += PACES_AT_ONCE

    def _ask(self, look: Look, spec: ProgramSpec, bound_s: float, open_s: list[float]) -> None:
        """Solves one program, for placements that beat the best."""
        if self._best is not None:
            spec = replace(spec, at_most_s=self._best[0] * (1 - self._tolerance))
        solution = solve(spec, max(LEAST_PROGRAM_S, self._program_limit_s()))
        self._programs += 1
        if solution.status == "time limit":
            open_s.append(max(bound_s, solution.bound_s or 0.0))
        found = _read_solution(look, spec, solution)
        if self._keep(look, found):
            self._specs[look.candidate, look.way] = spec

    def _program_limit_s(self) -> float:
        """Seconds one more program may take: not beyond the deadline, and not all that is left before it."""
        return min(self._deadline_s - time.monotonic(), self._limit_s * PROGRAM_SHARE)

    def _prefer(self) -> None:
        """Where programs found what is told of, takes the preferred ones among placements as good."""
        told = sorted(self._found, key=lambda key: self._found[key].objective_s)[:RUNNERS_UP]
        for key in told:
            spec, limit_s = self._specs.get(key), self._program_limit_s()
            if spec is None or limit_s <= 0:
                continue
            objective_s = self._found[key].objective_s
            spec = replace(spec, at_most_s=objective_s * (1 + RELATIVE_TOLERANCE))
            solution = solve_preferred(spec, limit_s)
            found = _read_solution(Look(objective_s, *key), spec, solution)
            if found is not None and solution.status == "optimal":
                self._found[key] = found

    def _certify(self) -> None:
        """Where bounds alone closed the search, solves the program of the best at its pace as well.

        Replicas in one class each are no question of a program.
        """
        assert self._best is not None
        objective_s, candidate, way = self._best
        limit_s = self._program_limit_s()
        if limit_s <= 0 or way == "spread" or (candidate, way) in self._specs:
            return
        look, spec = Look(objective_s, candidate, way), self._last_spec()
        solution = solve(spec, limit_s)
        self._programs += 1
        if self._keep(look, _read_solution(look, spec, solution)):
            self._specs[candidate, way] = spec

    def _last_spec(self) -> ProgramSpec:
        """The program of the best placement that one can find, at its pace."""
        keys = [key for key in self._found if key[1] != "spread"] or list(self._found)
        candidate, way = min(keys, key=lambda key: (self._found[key].objective_s, key))
        if (candidate, way) in self._specs:
            return replace(self._specs[candidate, way], at_most_s=None)
        coeffs, found = self._problem.coefficients(candidate), self._found[candidate, way].placement
        stages = zip(found.sites, found.layers, strict=True)
        last = candidate.pp - 1
        pace_s = max(site_stage_s(coeffs, tuple(row), held, s == last) for s, (row, held) in enumerate(stages))
        return ProgramSpec(coeffs, pace_s, pace_s)


def _raised(look: Look, bound_s: float | None) -> tuple[Look, ...]:
    """The look with the higher bound; none where there is no bound because nothing fits or is left to try."""
    return () if bound_s is None else (look._replace(bound_s=max(look.bound_s, bound_s)),)


def _recomputed(candidate: Candidate) -> int:
    """How much a candidate recomputes; of equals the least is kept."""
    return RECOMPUTE.index(candidate.recompute)


def _read_solution(look: Look, spec: ProgramSpec, solution: Solution) -> PricedPlacement | None:
    """The placement in a solution, priced by the closed form itself rather than by the solver."""
    if solution.blocks is None:
        return None
    seconds = blocks_step_s(spec.coeffs, solution.blocks)
    placement = from_blocks(look.candidate, spec.coeffs.num_microbatches, solution.blocks, solution.replicas)
    return PricedPlacement(seconds, placement)


def _out_of_time(time_limit_s: float) -> HolmesError:
    return HolmesError(
        f"no plan was found within {time_limit_s:g} s",
        "allow longer with --time-limit, or narrow the search: fix parallel.pp, dp or micro_batch_size in job.yaml",
        ANSWER_IS_NO,
    )


def _out_of_memory(job: Job, fleet: Fleet, candidates: tuple[Candidate, ...]) -> HolmesError:
    """Names the candidate that comes nearest to fitting, and by how much it misses."""
    known = [
        (each.hardware.memory_bytes, each.hosts[0].name)
        for each in fleet.classes
        if each.hardware.memory_bytes is not None
    ]
    if not known:
        return _no_place(fleet, candidates)
    largest, name = max(known)
    leanest = (_leanest(job, candidate) for candidate in candidates)
    needed, nearest = min((_even_memory_bytes(job, candidate), candidate) for candidate in leanest)
    if needed <= largest:
        return _no_place(fleet, candidates)
    layers = f" with the fixed cut {job.parallel.layers}" if job.parallel.layers else ""
    return HolmesError(
        f"GPU memory: no candidate fits{layers}; the nearest (tp {nearest.tp}, pp {nearest.pp}, dp {nearest.dp}, "
        f"micro_batch_size {nearest.micro_batch_size}, recompute {nearest.recompute}) needs {format_memory(needed)} "
        f"on a GPU, the largest (host {name}) has {format_memory(largest)}: {format_memory(needed - largest)} short",
        f"use GPUs with at least {format_memory(needed)}, add hosts so that pp can grow, or lower hidden_size, "
        "num_layers or seq_length in job.yaml; degrees fixed under `parallel` may also be in the way",
        ANSWER_IS_NO,
    )


def _no_place(fleet: Fleet, candidates: tuple[Candidate, ...]) -> HolmesError:
    """The slots would do, or the memory, but not both together, in whole stages."""
    one = min(candidates, key=lambda candidate: candidate.tp * candidate.pp * candidate.dp)
    group_slots = ", ".join(f"{each.cluster} {each.num_group_slots(one.tp)}" for each in fleet.classes)
    return HolmesError(
        f"no stage arrangement fits: even tp {one.tp}, pp {one.pp}, dp {one.dp} finds no {one.pp} stages of {one.dp} "
        f"tensor groups with enough memory (tensor groups by kind of host: {group_slots})",
        "lower parallel.dp or parallel.pp in job.yaml, or leave them out",
        ANSWER_IS_NO,
    )


def _leanest(job: Job, candidate: Candidate) -> Candidate:
    """The candidate with the most recomputation that job.yaml allows."""
    more = more_recompute(job, candidate)
    return candidate if more is None else _leanest(job, more)


def _even_memory_bytes(job: Job, candidate: Candidate) -> int:
    """Bytes the fullest rank needs when layers are cut evenly, or as fixed."""
    layers = usual_cut(job, candidate.pp)
    return max(stage_memory_bytes(job, candidate, stage, held) for stage, held in enumerate(layers))
