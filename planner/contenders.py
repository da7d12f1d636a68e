"""The best placements of the search, run as fast as their memory allows, fastest first; and why the others lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.job import Job
from holmes_core.plan import Alternative, Crossing
from holmes_core.units import format_seconds
from planner.fleet import Fleet
from planner.placement import Found
from planner.schedule_choice import Parts, Running, choose_schedule, parts_of
from planner.terms import make_terms

NEXT_BEST = 3  # alternatives told of, beside the best of every other crossing


@dataclass(frozen=True)
class Contender:
    """A placement, how it is run, and what of it travels between clusters."""

    found: Found
    running: Running
    crossing: Crossing


def rank_contenders(job: Job, fleet: Fleet, found: Sequence[Found]) -> list[Contender]:
    """The contenders, by simulated seconds of a step, then in the order of `found`.

    Raises HolmesError where job.yaml fixes a schedule that none of them can run.
    """
    contenders = []
    for each in found:
        running = choose_schedule(job, make_terms(job, fleet, each.placement.candidate), each.placement)
        if running is not None:
            contenders.append(Contender(each, running, each.placement.crossing(fleet)))
    if not contenders:
        raise HolmesError(
            f"none of the {len(found)} best placements can run the schedule fixed in job.yaml "
            f"(schedule {job.parallel.schedule}, chunks {job.parallel.chunks}, recompute {job.parallel.recompute}): "
            "memory is too small for what it keeps in flight, or micro-batches do not come in rounds of pp",
            "leave parallel.schedule and parallel.chunks out of job.yaml",
            ANSWER_IS_NO,
        )
    return sorted(contenders, key=lambda contender: contender.running.step_s)


def alternatives_to(
    job: Job, fleet: Fleet, best: Contender, contenders: Sequence[Contender]
) -> tuple[Alternative, ...]:
    """The next best, and the best of every crossing that is not among them, fastest first."""
    others = [contender for contender in contenders if contender is not best]
    told = others[:NEXT_BEST]
    for other in others:
        if other.crossing not in {best.crossing, *(each.crossing for each in told)}:
            told.append(other)
    parts = _parts(job, fleet, best)
    return tuple(_alternative(other, _why_slower(parts, _parts(job, fleet, other))) for other in told)


def _parts(job: Job, fleet: Fleet, contender: Contender) -> Parts:
    placement = contender.found.placement
    return parts_of(job, make_terms(job, fleet, placement.candidate), placement, contender.running)


def _alternative(other: Contender, why: str) -> Alternative:
    candidate, running = other.found.placement.candidate, other.running
    return Alternative(
        crossing=other.crossing,
        tp=candidate.tp,
        pp=candidate.pp,
        dp=candidate.dp,
        micro_batch_size=candidate.micro_batch_size,
        recompute=candidate.recompute,
        schedule=running.schedule,
        chunks=running.chunks,
        step_s=running.step_s,
        why=why,
    )


def _why_slower(best: Parts, other: Parts) -> str:
    """The part of the step that grew most, and by how much."""
    grown = {
        "the busiest rank computes": other.compute_s - best.compute_s,
        "ranks wait for one another": other.bubble_s - best.bubble_s,
        "messages between stages take": other.edges_s - best.edges_s,
        "gradients take": other.gradients_s - best.gradients_s,
    }
    what = max(grown, key=lambda part: grown[part])
    return f"{what} {format_seconds(max(0.0, grown[what]))} longer"
