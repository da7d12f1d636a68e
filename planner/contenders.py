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
from planner.schedule_choice import SAME, Parts, Running, choose_schedule, parts_of
from planner.terms import make_terms

NEXT_BEST = 3  # runners-up, beside the best of every other crossing


@dataclass(frozen=True)
class Contender:
    """A placement, how it is run, and what of it travels between clusters."""

    found: Found
    running: Running
    crossing: Crossing


def rank_contenders(job: Job, fleet: Fleet, found: Sequence[Found]) -> list[Contender]:
    """The fastest contender and its runners-up, by seconds simulated by classes, then in the order of `found`.

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
    contenders.sort(key=lambda contender: contender.running.step_s)
    ranked = contenders[: 1 + NEXT_BEST]
    for other in contenders[1 + NEXT_BEST :]:
        if other.crossing not in {each.crossing for each in ranked}:
            ranked.append(other)
    return ranked


def parts_by_class(job: Job, fleet: Fleet, contender: Contender) -> Parts:
    """The parts of the contender's step as simulated by classes."""
    placement = contender.found.placement
    return parts_of(job, make_terms(job, fleet, placement.candidate), placement, contender.running)


def alternative(other: Contender, parts: Parts, best: Parts, scale: float = 1.0) -> Alternative:
    """A runner-up, with seconds of its step `scale` times the sum of its parts, and why it lost to `best`."""
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
        step_s=parts.step_s * scale,
        why=_why_slower(best, parts),
    )


def _why_slower(best: Parts, other: Parts) -> str:
    """The part of the step that grew most, and by how much."""
    if other.step_s <= best.step_s * (1 + SAME):
        return "equally fast; the plan prefers fewer seconds of the closed form, then the smaller tp, pp and dp"
    grown = {
        "the busiest rank computes": other.compute_s - best.compute_s,
        "ranks wait for one another": other.bubble_s - best.bubble_s,
        "messages between stages take": other.edges_s - best.edges_s,
        "gradients take": other.gradients_s - best.gradients_s,
        "the optimizer takes": other.optimizer_s - best.optimizer_s,
    }
    what = max(grown, key=lambda part: grown[part])
    return f"{what} {format_seconds(grown[what])} longer"
