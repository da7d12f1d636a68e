"""Speeds of a plan's slots that were not measured: a sentence on what no published run shows, and the step's spread."""

from __future__ import annotations

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_core.units import format_names
from planner.cost.gpu_speeds import PUBLISHED_SPREAD, SPREAD, is_published
from planner.cost.slot import prices_all_cuts

MAX_NAMED = 8  # hosts in the sentence
CPU_SENTENCE = (  # what `holmes calibrate` prints for CPUs has overheads
    "How fast the CPUs compute is `compute.flops_per_s` of job.yaml, and what actions and the update cost is assumed: "
    "`holmes calibrate` measures all of it."
)


def step_spread_s(plan: Plan, inventory: Inventory) -> tuple[float, float] | None:
    """Return the least and the most seconds of a step on GPUs that nothing was measured on; None elsewhere.

    What waits for networks is the same in both: compute alone has the spread.
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
        f"The first {plan.job.model.first_dense_layers} layers have no experts. The step is priced stage by stage, but "
        "the search took all of them to be on the first stage or, without room there, every layer to be of the faster "
        "kind. Other cuts were tried near the best alone.",
    )


def assumed_speed_sentence(plan: Plan, inventory: Inventory) -> tuple[str, ...]:
    """Return the sentence; empty where all speeds are published, measured or given."""
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
        f"measure it: `holmes calibrate --host {hosts[0]}` gives compute.flops_per_s for job.yaml, and "
        "`--calibrate RUN` fits it to a run"
        if inventory.sketch is None
        else "compute.flops_per_s of job.yaml takes one that was measured"
    )
    return (
        f"How fast {', '.join(names)} on {format_names(hosts, MAX_NAMED)} computes is read from data sheets, and may "
        f"be {SPREAD:.0%} off either way; {remedy}.",
    )
