"""An unchanged plan, predicted and timed again: on another inventory, or for its timeline."""

from __future__ import annotations

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan, Prediction
from planner.layout.edge_codecs import choose_codecs
from planner.layout.layout import Layout, lay_out
from planner.layout.predict import predict, predict_step_s, predict_timeline
from planner.problem.candidates import candidate_of
from planner.problem.problem import Problem, read_problem
from planner.schedule.run_mode import RunMode
from planner.schedule.simulate import Span


def reprice(inventory: Inventory, plan: Plan) -> Prediction:
    """Return the prediction of `plan`'s placement on `inventory`."""
    problem = read_problem(inventory, plan.job)
    return predict(problem, layout_of(problem, plan))


def reprice_step_s(inventory: Inventory, plan: Plan) -> float:
    """Return only the step's seconds of that prediction."""
    problem = read_problem(inventory, plan.job)
    return predict_step_s(problem, layout_of(problem, plan))


def repacked_step_s(inventory: Inventory, plan: Plan, job: Job) -> float:
    """Return the step's seconds with the same placement and the codecs that `job` allows."""
    problem = read_problem(inventory, job)
    return predict_step_s(problem, choose_codecs(problem, layout_of(problem, plan)))


def plan_timeline(inventory: Inventory, plan: Plan, replica: int = 0) -> tuple[Span, ...]:
    """Return every action of one replica's simulated step."""
    problem = read_problem(inventory, plan.job)
    return predict_timeline(problem, layout_of(problem, plan), replica)


def layout_of(problem: Problem, plan: Plan) -> Layout:
    """Return the layout of `plan` on the networks of `problem`."""
    candidate = candidate_of(plan)
    layers = tuple(stage.num_layers for stage in plan.stages)
    mode = RunMode(plan.schedule, plan.chunks, plan.extra_in_flight, layers, plan.prediction.step_s)
    layout = lay_out(problem, candidate, mode, plan.ranks, plan.microbatches, plan.data_parallel)
    edges = {(group.axis, plan.ranks[group.ranks[0]].pp_rank): group for group in plan.groups if group.codec != "none"}
    return layout.with_codecs({key: group.codec for key, group in edges.items()})
