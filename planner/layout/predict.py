"""What a step costs on its placement: simulated seconds in parts, memory per rank, bytes on every interface.

The parts come from four simulations that differ in what takes time: compute alone; tensor parallel collectives too;
edges too; everything. compute_s is what the busiest rank computes; bubble_s the rest of the first simulation;
exposed_tp_s, exposed_edge_s and exposed_dp_s what each further one adds, and how long the gradients' norm is under way
over edges and around replicas; optimizer_s comes last. They add up to step_s.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import mul

from holmes_core.records.job import Job
from holmes_core.records.plan import Prediction
from holmes_runtime.config.schedule import make_schedule, microbatches_in_flight
from planner.cost.counts import memory_bytes
from planner.layout.layout import Layout
from planner.layout.layout_costs import LayoutCosts
from planner.layout.traffic import count_traffic
from planner.problem.problem import Problem
from planner.schedule.simulate import Pipeline, Span, simulate, timeline
from planner.tolerances import ROUNDING


def predict(problem: Problem, layout: Layout) -> Prediction:
    """The prediction for `layout`."""
    job, costs = problem.job, LayoutCosts(problem, layout)
    whole, without_edges = costs.pipelines(), costs.pipelines(edges=False)
    compute_alone = costs.pipelines(False, edges=False) if layout.candidate.tp > 1 else without_edges
    alone_s = simulate(compute_alone)
    without_edges_s = simulate(without_edges) if layout.candidate.tp > 1 else alone_s
    norm_down_s, norm_around_s = costs.norm_s()
    without_dp_s = simulate(whole) + norm_down_s if layout.candidate.pp > 1 else without_edges_s
    gradients_s = without_dp_s
    if layout.candidate.dp > 1:
        gradients_s = simulate(whole, costs.buckets()) + norm_down_s + norm_around_s
    microbatch_s = tuple(
        tuple(_rank_s(pipeline, layout.stages_of(pp_rank)) for pipeline in compute_alone)
        for pp_rank in range(layout.candidate.pp)
    )
    busiest_s = max(max(map(mul, by_replica, layout.microbatches)) for by_replica in microbatch_s)
    step_s = gradients_s + costs.optimizer_s()
    return Prediction(
        step_s=step_s,
        compute_s=busiest_s,
        bubble_s=alone_s - busiest_s if alone_s > busiest_s * (1 + ROUNDING) else 0.0,
        exposed_tp_s=without_edges_s - alone_s,
        exposed_edge_s=without_dp_s - without_edges_s,
        exposed_dp_s=gradients_s - without_dp_s,
        optimizer_s=step_s - gradients_s,
        tokens_per_s=job.global_batch_size * job.model.seq_length / step_s if step_s else 0.0,
        memory_bytes=rank_memory_bytes(job, layout),
        microbatch_compute_s=microbatch_s,
        traffic=count_traffic(job, layout),
    )


def predict_step_s(problem: Problem, layout: Layout) -> float:
    """Seconds of the step that `predict` would find, without its parts."""
    costs = LayoutCosts(problem, layout)
    return simulate(costs.pipelines(), costs.buckets()) + sum(costs.norm_s()) + costs.optimizer_s()


def predict_timeline(problem: Problem, layout: Layout, replica: int = 0) -> tuple[Span, ...]:
    """Every action of one replica's simulated step."""
    costs, mode, count = LayoutCosts(problem, layout), layout.mode, layout.microbatches[replica]
    schedule = make_schedule(mode.schedule, layout.candidate.pp, count, mode.chunks, mode.extra_in_flight)
    return timeline(schedule, costs.pipelines()[replica].times, costs.buckets())


def rank_memory_bytes(job: Job, layout: Layout) -> tuple[int, ...]:
    """Bytes each pipeline rank needs."""
    candidate, mode, last_rank = layout.candidate, layout.mode, layout.last_stage % layout.candidate.pp
    return tuple(
        memory_bytes(
            job.model,
            candidate.execution(job),
            [layout.layers[stage] for stage in layout.stages_of(rank)],
            microbatches_in_flight(
                mode.schedule, candidate.pp, max(layout.microbatches), rank, mode.chunks, mode.extra_in_flight
            ),
            rank == 0,
            rank == last_rank,
        )
        for rank in range(candidate.pp)
    )


def _rank_s(pipeline: Pipeline, stages: Iterable[int]) -> float:
    """What a rank that holds `stages` computes on one micro-batch."""
    return sum(pipeline.times.forward_s[stage] + pipeline.times.backward_s[stage] for stage in stages)
