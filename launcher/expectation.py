"""What a plan counts on, in the terms the runtime measures: seconds of a micro-batch by rank, of a message by edge."""

from __future__ import annotations

from holmes_core.plan import Plan, PlanRank
from holmes_runtime.flops import head_flops, layer_flops
from holmes_runtime.run_config import Expectation, ModelShape

VALUE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def expectation_of(plan: Plan, shape: ModelShape) -> Expectation:
    """From the speeds the job gives, and the bandwidths of the plan's groups; what neither says is left out."""
    compute_s = [_compute_s(plan, shape, rank) for rank in plan.ranks]
    known = [seconds for seconds in compute_s if seconds is not None]
    # hidden: (micro_batch_size, seq_length / tp, hidden_size)
    values = plan.micro_batch_size * shape.seq_length // plan.tp * shape.hidden_size
    size_bytes = values * VALUE_BYTES[plan.job.value_type]
    return Expectation(
        compute_s=tuple(known) if len(known) == len(compute_s) else (),
        transfer_s={
            group.name: size_bytes / group.bandwidth_bytes_per_s
            for group in plan.groups
            if group.axis in ("pp_forward", "pp_backward") and group.bandwidth_bytes_per_s is not None
        },
    )


def _compute_s(plan: Plan, shape: ModelShape, rank: PlanRank) -> float | None:
    """Seconds `rank` computes on one micro-batch, emulated or at the measured speed; None where neither is given."""
    stages = [stage for stage in plan.stages if stage.index % plan.pp == rank.pp_rank]
    layers = sum(stage.num_layers for stage in stages)
    compute = plan.job.compute
    if compute.emulate is not None:
        per_layer_s = compute.emulate.forward_s_per_layer + compute.emulate.backward_s_per_layer
        return layers * per_layer_s * compute.emulate.slowdown.get(rank.cluster, 1.0)
    if compute.flops_per_s is None:
        return None
    flops = layers * layer_flops(shape, plan.micro_batch_size)
    if any(stage.stop_layer == shape.num_layers for stage in stages):
        flops += head_flops(shape, plan.micro_batch_size)
    return flops / plan.tp / compute.flops_per_s
