"""The plan's expected seconds for the runtime: per micro-batch of each rank, and per message of each edge.

A receiver times a message from its request to its arrival, so latency counts twice.
"""

from __future__ import annotations

from math import prod

from holmes_core.records.plan import Plan
from holmes_runtime.config.codec import packed_bytes
from holmes_runtime.config.model_shape import message_shape
from holmes_runtime.config.rank_grid import EDGE_AXES
from holmes_runtime.config.run_settings import VALUE_BYTES, Expectation


def expectation_of(plan: Plan) -> Expectation:
    """Return the expectation from the plan's prediction. Groups with unknown bandwidths are left out."""
    model, by_place = plan.job.model, plan.prediction.microbatch_compute_s
    values = prod(message_shape(model, plan.micro_batch_size, plan.tp * plan.job.cp))
    value_bytes = VALUE_BYTES[plan.job.value_type]
    rates = {
        group.name: rate
        for group in plan.groups
        if group.axis in EDGE_AXES and (rate := group.rate_bytes_per_s) is not None
    }
    return Expectation(
        compute_s=tuple(by_place[rank.pp_rank][rank.dp_rank] for rank in plan.ranks),
        transfer_s={
            group.name: 2 * group.latency_s + packed_bytes(group.codec, values, value_bytes) / rates[group.name]
            for group in plan.groups
            if group.name in rates
        },
        bytes_per_s=rates,
    )
