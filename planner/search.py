"""The search over candidates: the cheapest bound first, until no bound is below the best placement found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.inventory import Inventory
from holmes_core.job import Job
from holmes_core.plan import SolveReport
from holmes_core.units import format_memory
from planner.candidates import Candidate, enumerate_candidates
from planner.closed_form import lower_bound_s, step_s
from planner.fleet import Fleet
from planner.ilp import Solution, solve, solver_name
from planner.terms import Terms, make_terms, no_links, read_links, stage_memory_bytes

PROGRAM_SHARE = 1 / 6  # of the time limit, at most, for one program: a hard one must not use up all others' time
SAME = 1e-6  # relative: what HiGHS's own tolerances leave open; objectives this close are equal
Progress = Callable[[int, int, float | None], None]
"""Called with candidates settled, candidates in all, and the best closed-form seconds so far."""


@dataclass(frozen=True)
class Point:
    """One candidate on the whole fleet or on one host alone, and the seconds it cannot beat."""

    bound_s: float
    candidate: Candidate
    fleet: Fleet
    terms: Terms


@dataclass(frozen=True)
class Placement:
    """Where the stages of a candidate go: layers[stage], and the index in `fleet` of the cluster of each replica."""

    candidate: Candidate
    fleet: Fleet
    layers: tuple[int, ...]
    sites: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Found:
    """A placement and its closed-form seconds."""

    objective_s: float
    placement: Placement
    terms: Terms


def search(
    inventory: Inventory, job: Job, fleet: Fleet, time_limit_s: float, progress: Progress | None = None
) -> tuple[Placement, SolveReport]:
    """The placement of least closed-form seconds, and how sure that is.

    Stops at `time_limit_s` with the best so far, its bound and gap; within the limit the answer depends on the input
    alone. Raises HolmesError when memory holds no candidate, or nothing was found in time.
    """
    deadline_s = time.monotonic() + time_limit_s
    candidates = enumerate_candidates(job, fleet)
    points = make_points(inventory, job, fleet, candidates)
    best = _first_fit(points, job)
    open_bounds: list[float] = []
    programs = 0
    for settled, point in enumerate(points):
        if best is not None and point.bound_s >= best.objective_s * (1 - SAME):
            break
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            open_bounds.append(point.bound_s)
            break
        solution = solve(
            point.terms, job.parallel.layers, point.bound_s, min(remaining_s, time_limit_s * PROGRAM_SHARE)
        )
        programs += 1
        found = _read_solution(point, solution)
        if found and (best is None or found.objective_s < best.objective_s * (1 - SAME)):
            best = found
        if solution.status == "time limit":
            open_bounds.append(max(point.bound_s, solution.bound_s or 0.0))
        if progress is not None:
            progress(settled + 1, len(points), best.objective_s if best else None)
    if best is None:
        raise _out_of_time(time_limit_s) if open_bounds else _out_of_memory(job, fleet, candidates)
    best = _preferred(best, job, min(deadline_s - time.monotonic(), time_limit_s * PROGRAM_SHARE))
    return best.placement, _report(best, open_bounds, len(candidates), programs)


def make_points(inventory: Inventory, job: Job, fleet: Fleet, candidates: tuple[Candidate, ...]) -> tuple[Point, ...]:
    """All candidates on the whole fleet, and on one host alone where they fit, those that memory may hold, by bound."""
    needs_links = any(candidate.pp * candidate.dp > 1 for candidate in candidates)
    links = read_links(inventory, job, fleet) if needs_links else no_links(fleet)
    alone = _hosts_alone(fleet)
    points = []
    for candidate in candidates:
        size = candidate.pp * candidate.dp
        choices = [(host, no_links(host)) for host in alone if host.clusters[0].num_places(candidate.tp) >= size]
        for chosen, chosen_links in [*choices, (fleet, links)]:
            terms = make_terms(job, chosen, chosen_links, candidate)
            bound_s = lower_bound_s(terms)
            if bound_s is not None:
                points.append(Point(bound_s, candidate, chosen, terms))
    return tuple(sorted(points, key=lambda point: point.bound_s))


def _hosts_alone(fleet: Fleet) -> list[Fleet]:
    """The first host of each kind with several slots, alone; one-slot hosts gain nothing by it."""
    hosts = [host for cluster in fleet.clusters for host in cluster.hosts]
    kinds: dict[tuple[int, int | None, float | None], Fleet] = {}
    for host in hosts:
        if len(host.gpus) > 1 and len(hosts) > 1:
            kinds.setdefault((len(host.gpus), host.memory_bytes, host.flops_per_s), fleet.alone(host.name))
    return list(kinds.values())


def _first_fit(points: tuple[Point, ...], job: Job) -> Found | None:
    """The best of the placements that fill clusters in order and cut evenly: something to beat, without a program."""
    best: Found | None = None
    for point in points:
        candidate, terms = point.candidate, point.terms
        slots = (cluster for cluster, places in enumerate(terms.places) for _ in range(places))
        sites = tuple(tuple(islice(slots, candidate.dp)) for _ in range(candidate.pp))
        layers = job.parallel.layers or even_layers(terms.num_layers, candidate.pp)
        fits = all(layers[s] <= terms.capacity[s][c] for s in range(candidate.pp) for c in sites[s])
        seconds = step_s(terms, layers, sites) if fits else None
        if seconds is not None and (best is None or seconds < best.objective_s * (1 - SAME)):
            best = Found(seconds, Placement(candidate, point.fleet, layers, sites), terms)
    return best


def _read_solution(point: Point, solution: Solution) -> Found | None:
    """The placement in a solution, priced by the closed form itself rather than by the solver."""
    if solution.layers is None or solution.replicas is None:
        return None
    sites = tuple(tuple(c for c, count in enumerate(counts) for _ in range(count)) for counts in solution.replicas)
    placement = Placement(point.candidate, point.fleet, solution.layers, sites)
    return Found(step_s(point.terms, placement.layers, sites), placement, point.terms)


def _preferred(best: Found, job: Job, limit_s: float) -> Found:
    """The preferred one among placements as good as `best`, or `best` if it is not found within the limit."""
    if limit_s <= 0:
        return best
    solution = solve(best.terms, job.parallel.layers, 0.0, limit_s, at_most_s=best.objective_s)
    point = Point(0.0, best.placement.candidate, best.placement.fleet, best.terms)
    found = _read_solution(point, solution)
    as_good = found is not None and found.objective_s <= best.objective_s * (1 + SAME)
    return found if found is not None and as_good and solution.status == "optimal" else best


def _report(best: Found, open_bounds: list[float], candidates: int, programs: int) -> SolveReport:
    """A proof when every bound was settled; else the least open bound."""
    bound_s = min([best.objective_s, *open_bounds])
    gap = (best.objective_s - bound_s) / best.objective_s if best.objective_s else 0.0
    return SolveReport(
        solver=solver_name(),
        status="time limit" if gap > SAME else "optimal",
        objective_s=best.objective_s,
        bound_s=bound_s,
        gap=gap,
        candidates=candidates,
        programs=programs,
    )


def _out_of_time(time_limit_s: float) -> HolmesError:
    return HolmesError(
        f"no plan was found within {time_limit_s:g} s",
        "fix parallel.pp, parallel.dp or parallel.micro_batch_size in job.yaml to narrow the search",
        ANSWER_IS_NO,
    )


def _out_of_memory(job: Job, fleet: Fleet, candidates: tuple[Candidate, ...]) -> HolmesError:
    """Names the candidate that comes nearest to fitting, and by how much it misses."""
    needed, nearest = min((_even_memory_bytes(job, candidate), candidate) for candidate in candidates)
    known = [
        (host.memory_bytes, host.name)
        for cluster in fleet.clusters
        for host in cluster.hosts
        if host.memory_bytes is not None
    ]
    smallest, name = min(known)
    layers = f" with the fixed cut {job.parallel.layers}" if job.parallel.layers else ""
    return HolmesError(
        f"GPU memory: no candidate fits{layers}; the nearest (tp {nearest.tp}, pp {nearest.pp}, dp {nearest.dp}, "
        f"micro_batch_size {nearest.micro_batch_size}) needs {format_memory(needed)} on a GPU, the smallest GPU "
        f"(host {name}) has {format_memory(smallest)}",
        f"use GPUs with at least {format_memory(needed)}, add hosts so that pp can grow, or lower hidden_size, "
        "num_layers or seq_length in job.yaml; degrees fixed under `parallel` may also be in the way",
        ANSWER_IS_NO,
    )


def _even_memory_bytes(job: Job, candidate: Candidate) -> int:
    """Bytes the fullest rank needs when layers are cut evenly, or as fixed."""
    layers = job.parallel.layers or even_layers(job.model.num_layers, candidate.pp)
    return max(stage_memory_bytes(job, candidate, stage, held) for stage, held in enumerate(layers))


def even_layers(num_layers: int, pp: int) -> tuple[int, ...]:
    """`num_layers` over `pp` stages as evenly as can be, the remainder on the first stages."""
    return tuple(num_layers // pp + (stage < num_layers % pp) for stage in range(pp))
