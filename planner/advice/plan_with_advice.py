"""The whole answer to `holmes plan`: the plan, plans for changed inventories, and the changes that help most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from holmes_core.errors import HolmesError
from holmes_core.records.advice import Ablation, LayerExperts, PlanAnswer
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Order, Plan
from planner.advice.ablation import ablations
from planner.advice.advise import Advised, Effort, advise, trying_more_hosts
from planner.advice.questions import answers
from planner.experts.place_experts import place_experts
from planner.experts.routing_trace import Chosen
from planner.make_plan import make_plan
from planner.time_left import TimeLeft

EFFORT = Effort()


@dataclass(frozen=True)
class PlanRequest:
    """The inventory and job to plan, the function that plans them, and changed inventories and jobs by description.

    `make` takes the seconds it may use; `time_limit_s` is for all plans together. `explains`: answer the usual
    questions as well. `without` names features to price the plan without. `trace` has the experts of tokens by layer.
    """

    inventory: Inventory
    job: Job
    order: Order
    changed: Mapping[str, tuple[Inventory, Job]]
    make: Callable[[float], Plan]
    time_limit_s: float
    explains: bool = False
    without: tuple[str, ...] = ()
    trace: tuple[tuple[Chosen, ...], ...] = ()


@dataclass(frozen=True)
class PlanAndAdvice:
    """The plan; for each change its plan or error; the advice; and the answers to other requests."""

    plan: Plan
    what_ifs: Mapping[str, Plan | HolmesError]
    advised: Advised
    answers: tuple[PlanAnswer, ...] = ()
    ablations: tuple[Ablation, ...] = ()
    experts: tuple[LayerExperts, ...] = ()


def plan_with_advice(request: PlanRequest, tell: Callable[[str], None]) -> PlanAndAdvice:
    """Return the answer to `request`; `tell` gets a line for each step that begins after the plan itself.

    Meanwhile, other processes try one more host in each cluster; none outlives the call.

    Raises:
        HolmesError: there is no plan.
    """
    left = TimeLeft(request.time_limit_s)
    with trying_more_hosts(request.inventory, request.job, request.order, EFFORT) as more_hosts:
        plan, what_ifs = _plans(request, left, tell)
        experts = _experts(request, plan, left, tell)
        tell("trying changes that would help most")
        with_more_hosts_s = {change: call.result_within(left.seconds) for change, call in more_hosts.items()}
    effort = replace(EFFORT, in_all_s=left.seconds)
    advised = advise(request.inventory, plan, with_more_hosts_s, effort)
    if request.explains:
        tell("explaining the plan")
    explained = tuple(answers(request.inventory, plan, left)) if request.explains else ()
    without = ablations(request.inventory, plan, request.without)
    return PlanAndAdvice(plan, what_ifs, advised, explained, without, experts)


def _experts(request: PlanRequest, plan: Plan, left: TimeLeft, tell: Callable[[str], None]) -> tuple[LayerExperts, ...]:
    """Return the experts of each layer by rank, in half of the remaining time; none without a trace."""
    if not request.trace:
        return ()
    tell("placing experts")
    return place_experts(request.inventory, plan, request.trace, TimeLeft(left.seconds / 2))


def _plans(
    request: PlanRequest, left: TimeLeft, tell: Callable[[str], None]
) -> tuple[Plan, Mapping[str, Plan | HolmesError]]:
    """Return the plan and the plans of changed inventories, each made in an equal share of the time left by then."""
    plan = request.make(left.seconds / (1 + len(request.changed)))
    what_ifs: dict[str, Plan | HolmesError] = {}
    for words, changed in request.changed.items():
        tell(f"planning with {words}")
        what_ifs[words] = _plan_or_error(plan, *changed, left.seconds / (len(request.changed) - len(what_ifs)))
    return plan, what_ifs


def _plan_or_error(plan: Plan, inventory: Inventory, job: Job, time_limit_s: float) -> Plan | HolmesError:
    """Return the plan after a change, or its error, since that nothing fits is an answer too."""
    sources = plan.inventory, plan.job_source
    try:
        return make_plan(inventory, job, *sources, plan.order, time_limit_s=time_limit_s)
    except HolmesError as error:
        return error
