"""Inventory and job to plan: the search's placement, or the usual order with the same degrees, written out in full."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.inventory import Inventory
from holmes_core.job import Job
from holmes_core.plan import Order, Plan, PlanRank, PlanStage, Prediction, SolveReport, Source
from planner.candidates import Candidate, check_job
from planner.environment import make_nodes
from planner.fleet import Fleet, read_fleet
from planner.networks import make_groups, shared_network
from planner.place import hosts_by_stage, number_ranks, place
from planner.predict import Laid, predict
from planner.price import price_s
from planner.search import Placement, Progress, search
from planner.usual_order import misfit, usual_placement, usual_places
from planner.verify import verify

TIME_LIMIT_S = 60.0  # long enough for a proof on the sizes we test; the plan says when it was not


def make_plan(
    inventory: Inventory,
    job: Job,
    inventory_source: Source,
    job_source: Source,
    order: Order = "holmes",
    progress: Progress | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Plan:
    """The plan of `job` on the reachable hosts of `inventory`, verified.

    The same input gives the same plan, unless the time limit ends the search. `order` "usual" takes the degrees the
    search chooses and places them as people do without it. Raises HolmesError: what fails and what would make it fit.
    """
    check_job(job)
    fleet = read_fleet(inventory, job)
    shared_network(inventory)
    placement, report = search(inventory, job, fleet, time_limit_s, progress)
    usual, problem = _lay_usual(inventory, job, fleet, placement.candidate)
    if order == "holmes":
        places = place(placement)
        laid = _lay(inventory, job, placement, number_ranks(places, hosts_by_stage(places), placement.candidate.tp))
    elif usual is not None:
        laid, report = usual, _usual_report(inventory, job, fleet, usual, report)
    else:
        raise HolmesError(
            f"the usual order does not fit: {problem}",
            "plan without `--usual-order`, or give GPUs more room: larger parallel.pp, smaller micro_batch_size",
            ANSWER_IS_NO,
        )
    plan = Plan(
        inventory=inventory_source,
        job_source=job_source,
        job=job,
        order=order,
        tp=laid.candidate.tp,
        pp=laid.candidate.pp,
        dp=laid.candidate.dp,
        micro_batch_size=laid.candidate.micro_batch_size,
        microbatches=(laid.candidate.num_microbatches(job.global_batch_size),) * laid.candidate.dp,
        schedule="1f1b",
        chunks=1,
        extra_in_flight=(),
        recompute="none",
        nodes=make_nodes(inventory, job, laid.ranks),
        stages=_stages(laid),
        ranks=laid.ranks,
        groups=laid.groups,
        prediction=predict(job, fleet, laid),
        solve=report,
        usual_order=_predict_usual(job, fleet, usual) if order == "holmes" else None,
    )
    faults = verify(plan, inventory)
    if faults:
        raise AssertionError("the planner made a plan that does not verify: " + "; ".join(faults))
    return plan


def _lay(inventory: Inventory, job: Job, placement: Placement, ranks: tuple[PlanRank, ...]) -> Laid:
    return Laid(placement.candidate, placement.layers, ranks, make_groups(inventory, job, ranks))


def _lay_usual(inventory: Inventory, job: Job, fleet: Fleet, candidate: Candidate) -> tuple[Laid | None, str | None]:
    """The usual order of `candidate`, or None and why it cannot be placed."""
    places = usual_places(inventory, fleet, candidate)
    placement = usual_placement(job, fleet, candidate, places)
    problem = misfit(job, placement, places)
    if problem is not None:
        return None, problem
    ranks = number_ranks(places, [host.name for host in inventory.hosts], candidate.tp)
    return _lay(inventory, job, placement, ranks), None


def _usual_report(inventory: Inventory, job: Job, fleet: Fleet, laid: Laid, found: SolveReport) -> SolveReport:
    """The usual order's own closed form against the bound the search proved for any placement."""
    objective_s = price_s(inventory, job, fleet, laid.candidate, laid.layers, laid.ranks)
    bound_s = min(found.bound_s, objective_s)
    gap = (objective_s - bound_s) / objective_s if objective_s else 0.0
    return found.model_copy(update={"status": "fixed", "objective_s": objective_s, "bound_s": bound_s, "gap": gap})


def _predict_usual(job: Job, fleet: Fleet, usual: Laid | None) -> Prediction | None:
    return predict(job, fleet, usual) if usual is not None else None


def _stages(laid: Laid) -> tuple[PlanStage, ...]:
    """The layers of each stage, and its clusters in the order of its replicas."""
    clusters: Sequence[tuple[str, ...]] = [
        tuple(dict.fromkeys(r.cluster for r in sorted(laid.ranks, key=lambda r: r.dp_rank) if r.pp_rank == stage))
        for stage in range(laid.candidate.pp)
    ]
    starts = [sum(laid.layers[:stage]) for stage in range(laid.candidate.pp)]
    return tuple(
        PlanStage(index=stage, first_layer=start, stop_layer=start + held, clusters=clusters[stage])
        for stage, (start, held) in enumerate(zip(starts, laid.layers, strict=True))
    )
