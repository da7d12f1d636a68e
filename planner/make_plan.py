"""Inventory and job to plan: the fastest of the search's best placements, or the usual order, written out in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.inventory import Inventory
from holmes_core.job import Job
from holmes_core.plan import Alternative, Order, Plan, PlanRank, PlanStage, Prediction, SolveReport, Source
from planner.candidates import check_job
from planner.contenders import Contender, alternative, parts_by_class, rank_contenders
from planner.environment import make_nodes
from planner.fleet import Fleet, read_fleet, require_rates
from planner.ilp import solver_name
from planner.latency import read_latencies
from planner.networks import make_groups
from planner.place import hosts_by_stage, number_ranks, place
from planner.placement import Placement
from planner.predict import Laid, predict
from planner.price import price_ranks_s
from planner.schedule_choice import Parts, Running, choose_schedule
from planner.search import SAME, Answer, Progress, search
from planner.terms import make_terms
from planner.usual_order import best_usual, misfit, usual_placement, usual_places
from planner.verify import verify

MOST_RANKS_DRAWN = 4096  # in all: on more, contenders are compared by classes and only the best is written out
TIME_LIMIT_S = 60.0  # long enough for a proof on the sizes we test; the plan says when it was not


@dataclass(frozen=True)
class Drawn:
    """A placement written out, how it is run, and its prediction."""

    placement: Placement
    running: Running
    laid: Laid
    prediction: Prediction


def make_plan(
    inventory: Inventory,
    job: Job,
    inventory_source: Source,
    job_source: Source,
    order: Order = "holmes",
    progress: Progress | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    lp: Path | None = None,
) -> Plan:
    """The plan of `job` on the reachable hosts of `inventory`, verified.

    The same input gives the same plan, unless the time limit ends the search. The usual order with the degrees that
    suit it best is a contender too, so that no plan is slower than it; with `order` "usual" it is the plan. `lp` names
    a file for the last integer program. Raises HolmesError: what fails and what would make it fit.
    """
    check_job(job)
    fleet = read_fleet(inventory, job)
    require_rates(inventory, job, fleet)
    answer = search(job, fleet, time_limit_s, progress, lp)
    contenders = rank_contenders(job, fleet, answer.found)
    usual = _draw_usual(inventory, job, fleet, answer)
    as_usual = usual.prediction if usual is not None else None
    alternatives: tuple[Alternative, ...] = ()
    if order == "usual":
        if usual is None:
            raise _usual_misfit(inventory, job, fleet, contenders[0].found.placement)
        drawn = usual
    else:
        del usual  # two large plans at once are too much memory; the usual order is seldom faster
        drawn, alternatives = _draw_best(inventory, job, fleet, contenders)
        if as_usual is not None and as_usual.step_s < drawn.prediction.step_s * (1 - SAME):
            drawn = _draw_usual(inventory, job, fleet, answer) or drawn
    solve = _report(job, fleet, answer, drawn, alternatives, order)
    plan = _write(inventory, job, inventory_source, job_source, order, drawn, solve, as_usual)
    faults = verify(plan, inventory)
    if faults:
        raise AssertionError("the planner made a plan that does not verify: " + "; ".join(faults[:20]))
    return plan


def _draw_best(
    inventory: Inventory, job: Job, fleet: Fleet, contenders: Sequence[Contender]
) -> tuple[Drawn, tuple[Alternative, ...]]:
    """The fastest contender written out, and the others beside it, fastest first.

    All are written out and compared by their predictions where that is cheap. Else the order of the simulation by
    classes stands, and the seconds of the others are as much more than the prediction of the best as they are there.
    """
    best = contenders[0]
    ranks = sum(c.tp * c.pp * c.dp for c in (each.found.placement.candidate for each in contenders))
    if ranks > MOST_RANKS_DRAWN:
        drawn = _draw(inventory, job, fleet, best)
        parts = parts_by_class(job, fleet, best)
        scale = drawn.prediction.step_s / parts.step_s if parts.step_s else 1.0
        others = [(each, parts_by_class(job, fleet, each)) for each in contenders[1:]]
        return drawn, tuple(alternative(each, theirs, parts, scale) for each, theirs in others)
    all_drawn = [(each, _draw(inventory, job, fleet, each)) for each in contenders]
    all_drawn.sort(key=lambda pair: pair[1].prediction.step_s)
    (_, drawn), *rest = all_drawn
    parts = _parts(drawn.prediction)
    return drawn, tuple(alternative(each, _parts(other.prediction), parts) for each, other in rest)


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
    placement = contender.found.placement
    places = place(placement, fleet, make_terms(job, fleet, placement.candidate).aligned)
    ranks = number_ranks(places, hosts_by_stage(places), placement.candidate.tp)
    return _predicted(inventory, job, fleet, placement, contender.running, ranks)


def _draw_usual(inventory: Inventory, job: Job, fleet: Fleet, answer: Answer) -> Drawn | None:
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
    return _predicted(inventory, job, fleet, found.placement, running, ranks)


def _predicted(
    inventory: Inventory, job: Job, fleet: Fleet, placement: Placement, running: Running, ranks: tuple[PlanRank, ...]
) -> Drawn:
    laid = Laid(
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
    return Drawn(placement, running, laid, predict(job, fleet, laid))


def _usual_misfit(inventory: Inventory, job: Job, fleet: Fleet, best: Placement) -> HolmesError:
    """Why the usual order does not fit with the degrees of the best placement."""
    places = usual_places(inventory, fleet, best.candidate)
    problem = misfit(job, fleet, usual_placement(job, fleet, best.candidate, places), places)
    return HolmesError(
        f"the usual order does not fit: {problem or 'memory holds no even cut under its schedule'}",
        "plan without `--usual-order`, or give GPUs more room: larger parallel.pp, smaller micro_batch_size",
        ANSWER_IS_NO,
    )


def _report(
    job: Job, fleet: Fleet, answer: Answer, drawn: Drawn, alternatives: tuple[Alternative, ...], order: Order
) -> SolveReport:
    """The search's proof, and the closed form of the ranks as they were drawn."""
    candidate, layers = drawn.placement.candidate, drawn.placement.layers
    placement_s = price_ranks_s(job, fleet, candidate, layers, drawn.laid.ranks, drawn.placement.microbatches)
    objective_s = min(placement_s, answer.found[0].objective_s)
    bound_s = min(answer.bound_s, objective_s)
    gap = (objective_s - bound_s) / objective_s if objective_s else 0.0
    if gap <= SAME:
        gap, bound_s = 0.0, objective_s
    return SolveReport(
        solver=solver_name(),
        status="fixed" if order == "usual" else "optimal" if gap == 0 else answer.status,
        objective_s=objective_s,
        bound_s=bound_s,
        gap=gap,
        placement_s=placement_s,
        candidates=answer.candidates,
        programs=answer.programs,
        crossing=drawn.placement.crossing(fleet),
        alternatives=alternatives,
    )


def _write(
    inventory: Inventory,
    job: Job,
    inventory_source: Source,
    job_source: Source,
    order: Order,
    drawn: Drawn,
    solve: SolveReport,
    usual: Prediction | None,
) -> Plan:
    candidate, running, laid = drawn.placement.candidate, drawn.running, drawn.laid
    return Plan(
        inventory=inventory_source,
        job_source=job_source,
        job=job,
        order=order,
        tp=candidate.tp,
        pp=candidate.pp,
        dp=candidate.dp,
        micro_batch_size=candidate.micro_batch_size,
        microbatches=drawn.placement.microbatches,
        schedule=running.schedule,
        chunks=running.chunks,
        extra_in_flight=running.extra_in_flight,
        recompute=candidate.recompute,
        nodes=make_nodes(inventory, job, laid.ranks),
        stages=_stages(candidate.pp, running.layers, laid.ranks),
        ranks=laid.ranks,
        groups=laid.groups,
        prediction=drawn.prediction,
        solve=solve,
        usual_order=usual if order == "holmes" else None,
    )


def _stages(pp: int, layers: Sequence[int], ranks: Sequence[PlanRank]) -> tuple[PlanStage, ...]:
    """The layers of each stage, and its clusters in the order of its replicas."""
    clusters: list[dict[str, None]] = [{} for _ in range(pp)]
    for rank in sorted(ranks, key=lambda rank: rank.dp_rank):
        clusters[rank.pp_rank][rank.cluster] = None
    starts = [sum(layers[:stage]) for stage in range(len(layers))]
    return tuple(
        PlanStage(index=stage, first_layer=start, stop_layer=start + held, clusters=tuple(clusters[stage % pp]))
        for stage, (start, held) in enumerate(zip(starts, layers, strict=True))
    )
