"""Speeds of a plan's slots that were not measured: a sentence about unpublished ones, and the step's spread."""

from __future__ import annotations

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_core.units import format_names
from planner.cost.gpu_speeds import PUBLISHED_SPREAD, SPREAD, is_published
from planner.cost.slot import prices_all_cuts

MAX_NAMED = 8  # hosts in the sentence
CPU_SENTENCE = (  # the output of `holmes calibrate` for CPUs includes overheads
    "The speed of the CPUs is `compute.flops_per_s` of job.yaml, and the cost of actions and of the update is assumed: "
    "`holmes calibrate` measures all of them."
)


def step_spread_s(plan: Plan, inventory: Inventory) -> tuple[float, float] | None:
    """Return the least and the most seconds of a step on GPUs without any measurement; None elsewhere.

    Only compute has the spread. The time that waits for networks is the same in both.
    """
    job, step = plan.job, plan.prediction
    compute = job.compute
    if job.device == "cpu" or compute.emulate or compute.calibration or compute.flops_per_s is not None:
        return None
    names = {gpu.name for node in plan.nodes for gpu in inventory.host(node.host).for_job().gpus if gpu.name}
    published = all(is_published(name, job.value_type, job.engine) for name in names)
    spread = (PUBLISHED_SPREAD if published else SPREAD) * (step.step_s - step.exposed_edge_s - step.exposed_dp_s)
    return step.step_s - spread, step.step_s + spread


def dense_layers_sentence(plan: Plan) -> tuple[str, ...]:
    """Return a sentence on cuts between first layers without experts, which the search does not price; else empty."""
    if prices_all_cuts(plan.job, plan.pp):
        return ()
    return (
        f"The first {plan.job.model.first_dense_layers} layers have no experts. The step is priced stage by stage. The "
        "search, however, assumed all of them on the first stage or, if they do not fit there, that every layer is of "
        "the faster kind. Other cuts were tried only near the best one.",
    )


def assumed_speed_sentence(plan: Plan, inventory: Inventory) -> tuple[str, ...]:
    """Return the sentence; empty if all speeds are published, measured or given."""
    job, compute = plan.job, plan.job.compute
    if compute.emulate is not None or compute.calibration is not None:
        return ()
    if job.device == "cpu":
        return () if compute.overheads is not None else (CPU_SENTENCE,)
    if compute.flops_per_s is not None:
        return ()
    names: dict[str, None] = {}
    hosts = []
    for node in plan.nodes:
        gpus = inventory.host(node.host).for_job().gpus
        assumed = [gpu.name for gpu in gpus if gpu.name and not is_published(gpu.name, job.value_type, job.engine)]
        names |= dict.fromkeys(assumed)
        hosts += [node.host] if assumed else []
    if not names:
        return ()
    remedy = (
        f"to measure it, run `holmes calibrate --host {hosts[0]}`, which prints compute.flops_per_s for job.yaml, or "
        "fit it to a run with `--calibrate RUN`"
        if inventory.sketch is None
        else "set compute.flops_per_s in job.yaml to a measured value"
    )
    return (
        f"The speed of {', '.join(names)} on {format_names(hosts, MAX_NAMED)} comes from data sheets and may be off by "
        f"{SPREAD:.0%} either way; {remedy}.",
    )
