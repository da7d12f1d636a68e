"""The usual rank order: hosts as listed and degrees as set, without regard to the networks between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.plan import PlanRank
from planner.problem.candidates import Candidate
from planner.problem.coefficients import Coefficients
from planner.problem.memory_room import stages_memory_bytes
from planner.problem.problem import Problem
from planner.schedule.assign_hosts import GroupSlot, group_slots_of, number_ranks
from planner.search.closed_form import price_hosts_s
from planner.search.placement import Placement, PricedPlacement, even_shares, usual_cut

MAX_PRICED = 40  # candidates, the most promising first, within this limit on all their group slots:
MAX_GROUP_SLOTS = 50_000


def usual_ranks(problem: Problem, candidate: Candidate) -> tuple[PlanRank, ...]:
    """Return the ranks in the usual order, by hosts in inventory order."""
    hosts = [host.name for host in problem.inventory.hosts]
    return number_ranks(problem.job, usual_group_slots(problem, candidate), hosts, candidate.tp)


def usual_group_slots(
    problem: Problem, candidate: Candidate, in_order: Sequence[GroupSlot] = ()
) -> dict[tuple[int, int], GroupSlot]:
    """Return the group slot of each (stage, replica): hosts in inventory order, a replica's stages on consecutive ones.

    Other trainers put a stage's replicas on consecutive ones. `in_order`: all group slots of the degree in that order,
    if already known.
    """
    slots = in_order or _in_order(problem, candidate.tp)
    stages, replicas = range(candidate.pp), range(candidate.dp)
    if problem.job.is_bundled:
        tasklets = [(stage, replica) for replica in replicas for stage in stages]
    else:
        tasklets = [(stage, replica) for stage in stages for replica in replicas]
    return dict(zip(tasklets, slots, strict=False))


def _in_order(problem: Problem, tp: int) -> list[GroupSlot]:
    known = problem.fleet.hosts
    hosts = (known[host.name] for host in problem.inventory.hosts if host.name in known)
    return [where for host in hosts for where in group_slots_of(host, tp)]


def usual_placement(
    problem: Problem, candidate: Candidate, group_slots: Mapping[tuple[int, int], GroupSlot]
) -> Placement:
    """Return the placement on these slots, with the fixed cut or an even one (the remainder on the first stages)."""
    sites = tuple(
        tuple(problem.fleet.class_of[group_slots[stage, replica].host] for replica in range(candidate.dp))
        for stage in range(candidate.pp)
    )
    microbatches = even_shares(problem.job.batch_parts // candidate.micro_batch_size, candidate.dp)
    return Placement(candidate, usual_cut(problem.job, candidate.pp), sites, microbatches)


def memory_fault(
    problem: Problem, placement: Placement, group_slots: Mapping[tuple[int, int], GroupSlot]
) -> str | None:
    """Return a sentence about a stage that exceeds a host's memory; None if all fit or memory is not known."""
    needed = stages_memory_bytes(problem.job, placement.candidate, placement.layers)
    for (stage, _), where in sorted(group_slots.items()):
        available = problem.fleet.hosts[where.host].hardware.memory_bytes
        if available is not None and needed[stage] > available:
            return f"stage {stage} needs {needed[stage]} bytes on a GPU of host {where.host}, which has {available}"
    return None


def best_usual(problem: Problem, candidates: Iterable[tuple[float, Candidate]]) -> PricedPlacement | None:
    """Return the usual order with its best degrees; `candidates` come with their lower bounds, ascending.

    Only degrees that divide the batch count, as other programs require, if there are any. None if no even cut fits.
    """
    candidates = tuple(candidates)
    candidates = [each for each in candidates if each[1].divides(problem.job.batch_parts)] or candidates
    best: PricedPlacement | None = None
    in_order, priced = cache(partial(_in_order, problem)), 0
    for count, (bound_s, candidate) in enumerate(candidates):
        priced += candidate.pp * candidate.dp
        enough = count >= MAX_PRICED or priced > MAX_GROUP_SLOTS
        if best is not None and (bound_s >= best.objective_s or enough):
            break
        group_slots = usual_group_slots(problem, candidate, in_order(candidate.tp))
        placement = usual_placement(problem, candidate, group_slots)
        coeffs = problem.coefficients(candidate)
        if not _fits(coeffs, placement):
            continue
        hosts = [[group_slots[s, r].host for r in range(candidate.dp)] for s in range(candidate.pp)]
        shares = placement.microbatches
        seconds = price_hosts_s(coeffs, problem.fleet.class_of, placement.layers, hosts, shares, two_levels=False)
        if best is None or seconds < best.objective_s:
            best = PricedPlacement(seconds, placement)
    return best


def _fits(coeffs: Coefficients, placement: Placement) -> bool:
    rows = zip(placement.sites, placement.layers, coeffs.capacity, strict=True)
    return all(held <= capacity[c] for row, held, capacity in rows for c in set(row))


def usual_misfit(problem: Problem, best: Placement) -> HolmesError:
    """Return the error for a usual order that does not fit with the degrees of the best placement."""
    group_slots = usual_group_slots(problem, best.candidate)
    fault = memory_fault(problem, usual_placement(problem, best.candidate, group_slots), group_slots)
    if fault is None and problem.job.ep > 1 and len(problem.fleet.cluster_names) > 1:
        fault = "a stage's ranks would share experts across clusters"
    return HolmesError(
        f"the usual order does not fit: {fault or 'memory holds no even cut under its schedule'}",
        "plan without `--usual-order`, or reduce the memory per GPU: larger parallel.pp, smaller micro_batch_size",
        ANSWER_IS_NO,
    )
