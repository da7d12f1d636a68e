"""A plan's use of its GPUs: model FLOP/s of the predicted step over the peak of the GPUs."""

from __future__ import annotations

from collections import Counter

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_runtime.config.gpu_peaks import peak_flops_per_s
from holmes_runtime.config.trainable import trained_step_flops


def predicted_mfu(plan: Plan, inventory: Inventory) -> float | None:
    """Return the plan's model FLOPs utilisation; None for a rehearsal, and if a GPU's peak is not known."""
    job, step_s = plan.job, plan.prediction.step_s
    if not step_s or job.compute.emulate is not None:
        return None
    names = {(host.name, gpu.index): gpu.name for host in inventory.hosts for gpu in host.gpus}
    kinds = Counter(None if rank.gpu is None else names.get((rank.host, rank.gpu)) for rank in plan.ranks)
    whole = 0.0
    for name, count in kinds.items():
        peak = peak_flops_per_s(name, job.value_type) if name else None
        if peak is None:
            return None
        whole += count * peak
    return trained_step_flops(job.model, job.trainable, job.global_batch_size) / (step_s * whole)
