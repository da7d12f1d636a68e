"""Make a plan from an inventory and a job: write out the fastest of the best placements, or the usual order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

from holmes_core.errors import HolmesError
from holmes_core.measured_networks import relayed_pairs
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Alternative, Order, Plan, Prediction, SolveReport, SourceFile
from planner.background import BackgroundCall
from planner.cost.fill import fill_of
from planner.hub_plan import fastest_alone, plan_alone
from planner.layout.environment import make_nodes
from planner.layout.in_flight import room_in_flight
from planner.layout.layout import stages_of
from planner.layout.usual_order import usual_misfit
from planner.layout.verify import verify
from planner.layout.write_out import WrittenPlan, best_step_s, write_best, write_usual
from planner.problem.candidates import Candidate, enumerate_candidates
from planner.problem.free_degrees import chosen_degrees, with_free_degrees
from planner.problem.group_places import check_placed_groups
from planner.problem.near_cores import with_cores
from planner.problem.problem import Problem, read_problem, require_rates
from planner.schedule.any_schedule_bound import AnyScheduleBounds
from planner.schedule.local_search import STARTS, rank_improved
from planner.schedule.runners_up import Contender, rank_contenders
from planner.search.branch_and_bound import Progress, SearchResult, proof, search
from planner.search.certificate import Certificate, certify, form_of
from planner.search.closed_form import price_ranks_s
from planner.search.early_bounds import EarlyBounds
from planner.search.solve import solver_name
from planner.single_clusters import with_single_clusters
from planner.time_left import TimeLeft
from planner.tolerances import RELATIVE_TOLERANCE

# A plan under ZeRO-3 must be faster by this factor if others fit. It is the third largest error among the 32 published
# steps that show how much of ZeRO-3's traffic compute hides (docs/cost-model.md).
WORTH_SHARDING = 1.1
TIME_LIMIT_S = 60.0  # long enough for a proof at the sizes in the tests; a plan states if it has none
FAR = 0.3  # local search skips starts that are slower than a plan with other degrees by more than this share
STARTS_OF_A_CHANGE = 2  # starts of the local search in addition to the best one, if only a change is priced
SEARCHING = 0.6  # least share of a time limit; the rest is for simulating, writing out and checking
SIMULATING = 0.1  # share of a time limit; half of it may go to a search in each single cluster
USUAL_S = 0.5  # least wait for the usual order, even beyond the limit; enough for a small fleet
GPUS_WRITTEN_PER_S = 8000  # on a slow core, by all the work that follows the search

Sources = tuple[SourceFile, SourceFile]  # the inventory and the job
Search = Callable[[Job, float], "_Searched"]
"""A function that searches a job's placements within a number of seconds."""


def make_plan(
    inventory: Inventory,
    job: Job,
    inventory_source: SourceFile,
    job_source: SourceFile,
    order: Order = "holmes",
    progress: Progress | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    lp: Path | None = None,
) -> Plan:
    """Return the plan of `job` on the reachable hosts of `inventory`, verified.

    The time limit covers everything. Unless it ends the search, the same input gives the same plan. The usual order
    with its best degrees is a contender too, so no plan is slower; with `order` "usual" it is the plan. If the limit
    ended the search, the best placement in each single cluster is a contender as well. `lp` names a file for the
    certifying integer program. If the expert or context parallel degree is free, each choice is planned, and the job in
    the fastest plan fixes the degrees chosen.

    Raises:
        HolmesError: The job contradicts itself, nothing fits, or a rate is not known.
    """
    sources = inventory_source, job_source
    if relayed_pairs(inventory):

        def make(alone: Inventory, part_s: float, file: Path | None) -> Plan:
            return make_plan(alone, job, *sources, order, progress, part_s, file)

        return plan_alone(make, inventory, time_limit_s, lp)
    jobs, search_one = with_free_degrees(inventory, job), partial(_search, inventory, progress)
    if jobs == [job]:
        plan = _plan_searched(search_one(job, time_limit_s), sources, order, lp)
        assert plan is not None  # since no step had to be beaten
        return plan
    return _plan_free_degrees(job, jobs, search_one, sources, order, time_limit_s, lp)


def _plan_free_degrees(
    job: Job, jobs: Sequence[Job], search_one: Search, sources: Sources, order: Order, limit_s: float, lp: Path | None
) -> Plan:
    """Return the fastest plan over `jobs`, which fix the degrees that `job` leaves free."""
    left, searched, faults = TimeLeft(limit_s), list[_Searched](), dict[int, HolmesError]()
    for one in jobs:
        try:
            searched.append(search_one(one, limit_s / len(jobs)))
        except HolmesError as error:
            faults[jobs.index(one)] = error
    best: Plan | None = None
    before_s = left.seconds
    for each in sorted(searched, key=lambda each: each.result.found[0].objective_s):
        now_s = left.seconds
        if best is not None and (left.is_over or now_s < before_s - now_s):
            break  # the previous plan took longer than the time now left
        before_s = now_s
        try:
            plan = _plan_searched(each, sources, order, None, best.prediction.step_s if best else inf)
        except HolmesError as error:
            faults[jobs.index(each.problem.job)] = error
            continue
        if plan is not None and (best is None or plan.prediction.step_s < best.prediction.step_s):
            best = plan
    if best is None:
        raise faults[min(faults)]  # the error for the smallest degrees
    if lp is not None:
        _plan_searched(search_one(best.job, limit_s), sources, order, lp)
    return _with_bound_of_all(best.model_copy(update={"free_degrees": chosen_degrees(job, best.job)}), searched, left)


def _with_bound_of_all(best: Plan, searched: Sequence[_Searched], left: TimeLeft) -> Plan:
    """Return the best plan with a step bound that holds for everything `searched`."""
    step_s = best.prediction.step_s
    candidates = ((each, each.result.found[0].placement.candidate) for each in searched)
    bounds_s = (_step_bound_s(each.problem, each.result, candidate, left) for each, candidate in candidates)
    bound_s = min(best.solve.step_bound_s or step_s, *bounds_s)
    update = {"step_bound_s": bound_s, "step_gap": 1 - bound_s / step_s}
    return best.model_copy(update={"solve": best.solve.model_copy(update=update)})


@dataclass(frozen=True)
class _Searched:
    """A problem and its search result; `left_s` of its time limit remain for making a plan."""

    inventory: Inventory
    problem: Problem
    result: SearchResult
    time_limit_s: float
    left_s: float


def _search(inventory: Inventory, progress: Progress | None, job: Job, time_limit_s: float) -> _Searched:
    """Search the placements of `job`."""
    left = TimeLeft(time_limit_s)
    problem = read_problem(inventory, job)
    require_rates(problem)
    writing_s = _writing_s(problem, time_limit_s)
    result = search(problem, left.seconds - writing_s - SIMULATING * time_limit_s, progress)
    if result.status == "time limit":
        result = with_single_clusters(problem, result, left.less(writing_s + SIMULATING * time_limit_s / 2))
    return _Searched(inventory, problem, result, time_limit_s, left.seconds)


def _plan_searched(
    searched: _Searched, sources: Sources, order: Order, lp: Path | None, within_s: float = inf
) -> Plan | None:
    """Return the verified plan of a search result; None if its step would exceed `within_s`.

    `sources`: the files of the inventory and the job.
    """
    problem, result, left = searched.problem, searched.result, TimeLeft(searched.left_s)
    writing_s = _writing_s(problem, searched.time_limit_s)
    if order == "usual":
        if (usual := write_usual(problem, result)) is None:
            raise usual_misfit(problem, result.found[0].placement)
        written, compared = usual, _Comparisons()
    else:
        found = _write_and_compare(problem, result, left.less(writing_s), within_s)
        if found is None:
            return None
        written, compared = found
    layers, shares = written.placement.layers, (written.layout.ranks, written.placement.microbatches)
    placement_s = price_ranks_s(problem, _candidate_run(written), layers, *shares)
    certificate = None
    if order == "holmes" or lp:
        certificate = _certify(problem, result, written, placement_s, left.less(writing_s), lp)
    solve = _report(problem, result, written, placement_s, compared, order, certificate, left.less(writing_s / 2))
    plan = _write(problem, *sources, order, written, solve, compared.usual)
    check_placed_groups(problem.job, plan.ranks)
    faults = verify(plan, searched.inventory)
    if faults:
        raise AssertionError("the planner made a plan that does not verify: " + "; ".join(faults[:20]))
    return plan


def planned_step_s(inventory: Inventory, job: Job, time_limit_s: float, within_s: float = inf) -> float:
    """Return the predicted step of the plan for `job`, or slightly more, without making the rest of the plan.

    Local search starts only from the best few placements that take at most `within_s` before it. Infinite if there
    are none.

    Raises:
        HolmesError: Nothing fits, or a rate is not known.
    """
    problem, contenders = _few_contenders(inventory, job, time_limit_s, within_s)
    return best_step_s(problem, contenders) if contenders else inf


def plan_quickly(inventory: Inventory, job: Job, time_limit_s: float) -> tuple[Problem, WrittenPlan]:
    """Return the problem, and the placement that `planned_step_s` prices, written out.

    Raises:
        HolmesError: As in `planned_step_s`.
    """
    left = TimeLeft(time_limit_s)
    problem, contenders = _few_contenders(inventory, job, time_limit_s)
    return problem, write_best(problem, contenders, left)[0]


def _few_contenders(
    inventory: Inventory, job: Job, time_limit_s: float, within_s: float = inf
) -> tuple[Problem, list[Contender]]:
    if relayed_pairs(inventory):
        return fastest_alone(inventory, lambda one, s: _few_contenders(one, job, s, within_s), _first_s, time_limit_s)
    left = TimeLeft(time_limit_s)
    problem = read_problem(inventory, job)
    require_rates(problem)
    result = search(problem, SEARCHING * left.seconds)
    return problem, contenders_of(problem, result, left, STARTS_OF_A_CHANGE, within_s)


def _first_s(found: tuple[Problem, list[Contender]]) -> float:
    return found[1][0].mode.step_s if found[1] else inf


def _writing_s(problem: Problem, time_limit_s: float) -> float:
    """Return the seconds of the limit that are reserved for the work after the search."""
    return min(time_limit_s * (1 - SEARCHING - SIMULATING), 1 + problem.fleet.num_group_slots(1) / GPUS_WRITTEN_PER_S)


def contenders_of(
    problem: Problem,
    result: SearchResult,
    left: TimeLeft | None = None,
    max_starts: int = STARTS,
    within_s: float = inf,
) -> list[Contender]:
    """Return the best placements after local search, preceded by the best one under ZeRO-3 if it is worth it.

    Placements that take longer than `within_s` before local search are left out.
    """
    candidates, early = [each for _, each in result.ranked], problem.once(EarlyBounds)
    if result.found[0].placement.candidate.weight_shards > 1:
        plain = [*candidates, *result.misfits]
        candidates += dict.fromkeys(shared for each in plain for shared in early.with_shared_weights(each))
        return rank_improved(problem, result.found, candidates, left, max_starts, within_s)
    contenders = rank_improved(problem, result.found, candidates, left, max_starts, within_s)
    worth_s = (contenders[0].mode.step_s if contenders else within_s) / WORTH_SHARDING
    bounds, is_over = problem.once(AnyScheduleBounds), left is not None and left.is_over
    near = (each for each in result.misfits if not is_over and bounds.work_s(each) < worth_s)
    others = [shared for each in near for shared in early.with_shared_weights(each)]  # sharding makes no step shorter
    try:
        sharded = rank_contenders(problem, result.sharded, left=left, others=others, within_s=worth_s)
    except HolmesError:  # none can run the schedule that job.yaml fixes
        sharded = []
    return [*(each for each in sharded[:1] if each.mode.step_s < worth_s), *contenders]


@dataclass(frozen=True)
class _Comparisons:
    """The alternatives and the usual order with which a plan is compared."""

    alternatives: tuple[Alternative, ...] = ()
    usual: Prediction | None = None


def _write_and_compare(
    problem: Problem, result: SearchResult, left: TimeLeft, within_s: float
) -> tuple[WrittenPlan, _Comparisons] | None:
    """Return the best contender written out, or the usual order if that is faster, with its comparisons.

    None if local search has no start near `within_s` and the usual order takes longer.
    """

    def work() -> Prediction | None:
        written = write_usual(problem, result)
        return written.prediction if written is not None else None

    with BackgroundCall(work) as background:
        contenders = contenders_of(problem, result, left, within_s=within_s * (1 + FAR))
        written, alternatives = write_best(problem, contenders, left) if contenders else (None, ())
        usual = background.result_within(max(left.seconds, USUAL_S))
    faster_s = written.prediction.step_s * (1 - RELATIVE_TOLERANCE) if written else within_s
    if usual is not None and usual.step_s < faster_s:
        written = write_usual(problem, result) or written
    return (written, _Comparisons(alternatives, usual)) if written else None


def _certify(
    problem: Problem, result: SearchResult, written: WrittenPlan, placement_s: float, left: TimeLeft, lp: Path | None
) -> Certificate:
    """Return the certificate of the plan as run; the search may know a better placement with the same degrees."""
    placement = replace(written.placement, candidate=_candidate_run(written))
    form, candidate = form_of(placement), placement.candidate
    found = [each for each in (*result.found, *result.sharded) if each.placement.candidate == candidate]
    known_s = [each.objective_s for each in found if form_of(each.placement) == form]
    return certify(problem, placement, min([placement_s, *known_s]), left, lp)


def _candidate_run(written: WrittenPlan) -> Candidate:
    """Return the candidate with the fill of the schedule that the plan runs."""
    return written.placement.candidate._replace(fill=fill_of(written.layout.mode.schedule))


def _report(
    problem: Problem,
    result: SearchResult,
    written: WrittenPlan,
    placement_s: float,
    compared: _Comparisons,
    order: Order,
    certificate: Certificate | None,
    left: TimeLeft,
) -> SolveReport:
    """Report the search's proof, the closed form of the ranks as written out, and the certificate."""
    candidate = _candidate_run(written)
    objective_s, bound_s = min(placement_s, result.found[0].objective_s), result.bound_s
    if candidate.weight_shards > 1 and result.sharded:
        objective_s = min(objective_s, result.sharded[0].objective_s)
        bound_s = min(bound_s, result.sharded_bound_s)
    bound_s = min(bound_s, objective_s)
    gap = (objective_s - bound_s) / objective_s if objective_s else 0.0
    if gap <= RELATIVE_TOLERANCE:
        gap, bound_s = 0.0, objective_s
    step_s, step_bound_s = written.prediction.step_s, _step_bound_s(problem, result, candidate, left)
    if step_bound_s >= step_s * (1 - RELATIVE_TOLERANCE):
        step_bound_s = step_s
    return SolveReport(
        solver=solver_name(),
        status="fixed" if order == "usual" else proof(problem.job, candidate.pp, gap, result.status),
        objective_s=objective_s,
        bound_s=bound_s,
        gap=gap,
        placement_s=placement_s,
        candidates=result.candidates,
        programs=result.programs + (certificate.programs if certificate else 0),
        certificate_s=certificate.least_s if certificate else None,
        simulated=len(problem.simulated),
        step_bound_s=step_bound_s,
        step_gap=1 - step_bound_s / step_s if step_s else 0.0,
        crossing=written.placement.crossing(problem.fleet),
        alternatives=compared.alternatives,
    )


def _step_bound_s(problem: Problem, result: SearchResult, planned: Candidate, left: TimeLeft) -> float:
    """Return a lower bound in seconds on any simulated step; plans under ZeRO-3 count only if `planned` is one."""
    candidates = [each for _, each in result.ranked]
    if planned.weight_shards > 1:
        candidates += enumerate_candidates(problem.job, problem.fleet)
    return problem.once(AnyScheduleBounds).least_s(candidates, left)


def _write(
    problem: Problem,
    inventory_source: SourceFile,
    job_source: SourceFile,
    order: Order,
    written: WrittenPlan,
    solve: SolveReport,
    usual: Prediction | None,
) -> Plan:
    candidate, layout, mode = written.placement.candidate, written.layout, written.layout.mode
    ranks = with_cores(layout.ranks, problem.inventory.hosts)
    return Plan(
        inventory=inventory_source,
        sketch=problem.inventory.sketch,
        job_source=job_source,
        job=problem.job,
        order=order,
        tp=candidate.tp,
        pp=candidate.pp,
        dp=candidate.dp,
        micro_batch_size=candidate.micro_batch_size,
        microbatches=written.placement.microbatches,
        schedule=mode.schedule,
        chunks=mode.chunks,
        extra_in_flight=mode.extra_in_flight,
        room_in_flight=room_in_flight(problem, layout),
        recompute=candidate.recompute,
        optimizer_offload=candidate.optimizer_offload,
        nodes=make_nodes(problem, ranks),
        stages=stages_of(candidate.pp, mode.layers, ranks),
        ranks=ranks,
        groups=layout.groups,
        data_parallel=layout.data_parallel,
        zero=3 if candidate.weight_shards > 1 else 1,
        prediction=written.prediction,
        solve=solve,
        usual_order=usual,
    )
