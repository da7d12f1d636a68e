"""A plan as it stands, predicted and timed again: on another inventory, or to draw it. Nothing is placed anew."""

from __future__ import annotations

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan, Prediction
from planner.layout.predict import Layout, predict, predict_step_s, predict_timeline
from planner.problem.candidates import Candidate
from planner.problem.fleet import Fleet, read_fleet
from planner.problem.latency import read_latencies
from planner.problem.networks import make_groups
from planner.schedule.simulate import Span


def reprice(inventory: Inventory, plan: Plan) -> Prediction:
    """The prediction of `plan`'s placement on `inventory`."""
    fleet, layout = _layout(inventory, plan)
    return predict(plan.job, fleet, layout)


def reprice_step_s(inventory: Inventory, plan: Plan) -> float:
    """Seconds of that prediction's step, alone."""
    fleet, layout = _layout(inventory, plan)
    return predict_step_s(plan.job, fleet, layout)


def plan_timeline(inventory: Inventory, plan: Plan, replica: int = 0) -> tuple[Span, ...]:
    """Every action of one replica's simulated step."""
    fleet, layout = _layout(inventory, plan)
    return predict_timeline(plan.job, fleet, layout, replica)


def _layout(inventory: Inventory, plan: Plan) -> tuple[Fleet, Layout]:
    layout = Layout(
        Candidate(plan.tp, plan.pp, plan.dp, plan.micro_batch_size, plan.recompute),
        tuple(stage.num_layers for stage in plan.stages),
        plan.ranks,
        make_groups(inventory, plan.job, plan.ranks, plan.chunks),
        plan.schedule,
        plan.chunks,
        plan.extra_in_flight,
        plan.microbatches,
        read_latencies(inventory),
    )
    return read_fleet(inventory, plan.job), layout
