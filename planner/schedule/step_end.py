"""The end of a step after the last gradients: copies of a tied table are added up, and every rank updates its shard."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.records.job import Job
from holmes_runtime.config.model_shape import stage_parameters
from planner.cost.counts import Execution, edge_bytes, tied_bytes
from planner.cost.packing import lossiest_codec
from planner.cost.slot import update_s
from planner.problem.coefficients import Coefficients
from planner.problem.exchange_rates import Site
from planner.search.closed_form import edge_of


def tied_s(job: Job, execution: Execution, coeffs: Coefficients, sites: Sequence[Site]) -> float:
    """Return the seconds of the sum over copies of a tied table, as a message between the ends of the pipeline."""
    if not job.model.tied_embeddings or len(sites) == 1:
        return 0.0
    message = edge_bytes(job.model, execution, lossiest_codec(job))
    edge = edge_of(coeffs, sites[0], sites[-1])
    return tied_bytes(job.model, execution) / message * edge.busy_s + edge.latency_s


def slowest_update_s(
    job: Job, execution: Execution, coeffs: Coefficients, sites: Sequence[Site], layers: Sequence[int]
) -> float:
    """Return the seconds of the slowest rank's update; `sites` and `layers` by pipeline rank."""
    last = len(sites) - 1
    parameters = [
        stage_parameters(job.model, held, rank == 0, rank == last, execution.tp) for rank, held in enumerate(layers)
    ]
    kinds = {(size, coeffs.slots[c]) for size, site in zip(parameters, sites, strict=True) for c in site}
    return max(update_s(size, execution, slot) for size, slot in kinds)
