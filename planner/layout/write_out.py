"""Placements written out, with ranks and groups, and predicted: the plan's, those of runners-up, the usual order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Alternative, PlanRank, Prediction
from planner.layout.assign_hosts import hosts_by_stage, number_ranks, place
from planner.layout.predict import Laid, predict, predict_step_s
from planner.layout.usual_order import best_usual, usual_places
from planner.problem.coefficients import make_terms
from planner.problem.fleet import Fleet
from planner.problem.latency import read_latencies
from planner.problem.networks import make_groups
from planner.schedule.runners_up import Contender, alternative, fastest_first, parts_by_class
from planner.schedule.schedule_choice import Parts, Running, choose_schedule
from planner.search.branch_and_bound import Answer
from planner.search.placement import Placement

MOST_RANKS_DRAWN = 4096  # in all: on more, contenders are compared by classes and only the best is written out


@dataclass(frozen=True)
class Drawn:
    """A placement written out, how it is run, and its prediction."""

    placement: Placement
    running: Running
    laid: Laid
    prediction: Prediction


def draw_best(
    inventory: Inventory, job: Job, fleet: Fleet, contenders: Sequence[Contender]
) -> tuple[Drawn, tuple[Alternative, ...]]:
    """The fastest contender written out, and the others beside it, fastest first.

    All are written out and compared by their predictions where that is cheap. Else the order of the simulation by
    classes stands, and the seconds of the others are as much more than the prediction of the best as they are there.
    """
    if _are_many(contenders):
        drawn = _draw(inventory, job, fleet, contenders[0])
        own, *others = (parts_by_class(job, fleet, each) for each in contenders)
        scale = drawn.prediction.step_s / own.step_s if own.step_s else 1.0
        rest = zip(contenders[1:], others, strict=True)
        return drawn, tuple(alternative(each, theirs, own, scale) for each, theirs in rest)
    all_drawn = [_draw(inventory, job, fleet, each) for each in contenders]
    first, *slower = fastest_first(contenders, [drawn.prediction.step_s for drawn in all_drawn])
    parts = [_parts(drawn.prediction) for drawn in all_drawn]
    return all_drawn[first], tuple(alternative(contenders[at], parts[at], parts[first]) for at in slower)


def best_step_s(inventory: Inventory, job: Job, fleet: Fleet, contenders: Sequence[Contender]) -> float:
    """Seconds of the step that `draw_best` would predict for the fastest."""
    drawn = contenders[:1] if _are_many(contenders) else contenders
    seconds = [predict_step_s(job, fleet, _lay_out(inventory, job, fleet, each)) for each in drawn]
    return seconds[fastest_first(drawn, seconds)[0]]


def _are_many(contenders: Sequence[Contender]) -> bool:
    candidates = [each.found.placement.candidate for each in contenders]
    return sum(c.tp * c.pp * c.dp for c in candidates) > MOST_RANKS_DRAWN


def _parts(prediction: Prediction) -> Parts:
    """The parts that runners-up are compared by."""
    return Parts(
        prediction.compute_s + prediction.exposed_tp_s,
        prediction.bubble_s,
        prediction.exposed_edge_s,
        prediction.exposed_dp_s,
        prediction.optimizer_s,
    )


def _draw(inventory: Inventory, job: Job, fleet: Fleet, contender: Contender) -> Drawn:
    laid = _lay_out(inventory, job, fleet, contender)
    return Drawn(contender.found.placement, contender.running, laid, predict(job, fleet, laid))


def _lay_out(inventory: Inventory, job: Job, fleet: Fleet, contender: Contender) -> Laid:
    placement = contender.found.placement
    places = place(placement, fleet, make_terms(job, fleet, placement.candidate).aligned)
    ranks = number_ranks(places, hosts_by_stage(places), placement.candidate.tp)
    return _laid(inventory, job, placement, contender.running, ranks)


def draw_usual(inventory: Inventory, job: Job, fleet: Fleet, answer: Answer) -> Drawn | None:
    """The usual order at its best, under 1F1B unless job.yaml fixes the schedule; None where no even cut fits."""
    found = best_usual(inventory, job, fleet, answer.ranked)
    if found is None:
        return None
    plain = job.parallel.schedule or ("interleaved" if (job.parallel.chunks or 1) > 1 else "1f1b")
    as_usual = job.model_copy(update={"parallel": job.parallel.model_copy(update={"schedule": plain})})
    candidate = found.placement.candidate
    running = choose_schedule(as_usual, make_terms(job, fleet, candidate), found.placement)
    if running is None:
        return None
    places = usual_places(inventory, fleet, candidate)
    ranks = number_ranks(places, [host.name for host in inventory.hosts], candidate.tp)
    laid = _laid(inventory, job, found.placement, running, ranks)
    return Drawn(found.placement, running, laid, predict(job, fleet, laid))


def _laid(inventory: Inventory, job: Job, placement: Placement, running: Running, ranks: tuple[PlanRank, ...]) -> Laid:
    return Laid(
        candidate=placement.candidate,
        layers=running.layers,
        ranks=ranks,
        groups=make_groups(inventory, job, ranks, running.chunks),
        schedule=running.schedule,
        chunks=running.chunks,
        extra_in_flight=running.extra_in_flight,
        microbatches=placement.microbatches,
        latencies=read_latencies(inventory),
    )
