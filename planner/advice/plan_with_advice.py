"""All that `holmes plan` is asked at once: the plan, plans for changed inventories, and what would help most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Order, Plan, Source
from holmes_core.units import format_seconds
from planner.advice.advise import Advised, advise, trying_more_hosts
from planner.make_plan import make_plan
from planner.search.branch_and_bound import Progress


@dataclass(frozen=True)
class PlanRequest:
    """What is to be planned, as `make_plan` takes it, and changed inventories by the words of their changes."""

    inventory: Inventory
    job: Job
    inventory_source: Source
    job_source: Source
    changed: Mapping[str, Inventory]
    order: Order
    time_limit_s: float
    lp: Path | None


@dataclass(frozen=True)
class PlanAndAdvice:
    """The plan; for each changed inventory its plan, or why there is none; and the advice, if it was wanted."""

    plan: Plan
    what_ifs: Mapping[str, Plan | HolmesError]
    advised: Advised | None


def plan_with_advice(request: PlanRequest, wants_advice: bool, tell: Callable[[str], None]) -> PlanAndAdvice:
    """The answer to `request`; `tell` is given a line for each thing begun and each placement settled.

    Where advice is wanted, other processes try one more host in each cluster meanwhile; none outlives the call. Raises
    HolmesError where there is no plan.
    """
    if not wants_advice:
        return PlanAndAdvice(*_plans(request, tell), None)
    with trying_more_hosts(request.inventory, request.job, request.order) as more_hosts:
        plan, what_ifs = _plans(request, tell)
        tell("trying what would help most")
        with_more_hosts_s = {change: call.result() for change, call in more_hosts.items()}
    return PlanAndAdvice(plan, what_ifs, advise(request.inventory, plan, with_more_hosts_s))


def _plans(request: PlanRequest, tell: Callable[[str], None]) -> tuple[Plan, Mapping[str, Plan | HolmesError]]:
    plan = make_plan(
        request.inventory,
        request.job,
        request.inventory_source,
        request.job_source,
        request.order,
        _progress(tell),
        request.time_limit_s,
        request.lp,
    )
    what_ifs = {}
    for words, inventory in request.changed.items():
        tell(f"planning with {words}")
        what_ifs[words] = _plan_or_error(request, inventory)
    return plan, what_ifs


def _plan_or_error(request: PlanRequest, inventory: Inventory) -> Plan | HolmesError:
    """What a change leads to; that nothing fits is an answer too."""
    try:
        return make_plan(inventory, request.job, request.inventory_source, request.job_source, request.order)
    except HolmesError as error:
        return error


def _progress(tell: Callable[[str], None]) -> Progress:
    def progress(settled: int, total: int, best_s: float | None) -> None:
        best = f", best step so far {format_seconds(best_s)}" if best_s is not None else ""
        tell(f"{settled} of {total} placements settled{best}")

    return progress
