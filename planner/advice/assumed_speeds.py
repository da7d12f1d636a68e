"""Which GPUs of a plan compute at a speed that no published run tells, in a sentence: how far off the step may be."""

from __future__ import annotations

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_core.units import format_names
from planner.cost.gpu_speeds import SPREAD, is_published

MOST_NAMED = 8  # hosts in the sentence


def assumed_speed_sentence(plan: Plan, inventory: Inventory) -> tuple[str, ...]:
    """Nothing where all speeds are published, measured or given."""
    job = plan.job
    known = job.compute.flops_per_s or job.compute.emulate or job.compute.calibration
    if known is not None or job.device == "cpu":
        return ()
    names: dict[str, None] = {}
    hosts = []
    for node in plan.nodes:
        gpus = inventory.host(node.host).gpus
        assumed = [gpu.name for gpu in gpus if gpu.name and not is_published(gpu.name, job.value_type)]
        names |= dict.fromkeys(assumed)
        hosts += [node.host] if assumed else []
    if not names:
        return ()
    return (
        f"How fast {', '.join(names)} on {format_names(hosts, MOST_NAMED)} computes is read from data sheets, and may "
        f"be {SPREAD:.0%} off either way; measure it: `holmes calibrate --host {hosts[0]}` gives compute.flops_per_s "
        "for job.yaml, and `--calibrate RUN` fits it to a run.",
    )
