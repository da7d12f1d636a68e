"""The cost of a step on its placement: simulated seconds in parts, memory per rank, bytes on every interface.

The parts come from four simulations that differ in what takes time: only compute; also tensor parallel collectives;
also edges; everything. compute_s is the compute of the busiest rank; bubble_s is the rest of the first simulation.
exposed_tp_s, exposed_edge_s and exposed_dp_s are the seconds that each further one adds; under ZeRO-3, the last also
covers weights. exposed_dp_s includes the latency of the gradients' norm over edges and around replicas, and the sum
over copies of a tied table. optimizer_s comes last. They add up to step_s.
"""

from __future__ import annotations

from functools import partial
from operator import add, mul

from holmes_core.records.plan import Prediction
from holmes_runtime.config.schedule import make_schedule
from planner.layout.layout import Layout
from planner.layout.layout_costs import LayoutCosts
from planner.layout.traffic import count_traffic
from planner.problem.memory_room import host_bytes_by_rank
from planner.problem.problem import Problem
from planner.schedule.shared_core_runs import run_sharing, simulate_sharing
from planner.schedule.simulate import Span, spans_of
from planner.tolerances import ROUNDING


def predict(problem: Problem, layout: Layout) -> Prediction:
    """Return the prediction for `layout`."""
    job, costs = problem.job, LayoutCosts(problem, layout)
    whole = costs.pipelines(weights=False)
    without_edges = costs.pipelines(edges=False, weights=False)
    has_collectives = layout.candidate.tp > 1 or job.ep > 1 or job.cp > 1
    compute_alone = costs.pipelines(False, edges=False, weights=False) if has_collectives else without_edges
    simulated_s = partial(simulate_sharing, most_faster=costs.most_faster)
    alone_s = simulated_s(compute_alone)
    without_edges_s = simulated_s(without_edges) if has_collectives else alone_s
    norm_down_s, norm_around_s = costs.norm_s()
    without_dp_s = simulated_s(whole) + norm_down_s if layout.candidate.pp > 1 else without_edges_s
    tied_s = costs.tied_s()
    gradients_s = without_dp_s + tied_s
    if layout.candidate.dp > 1:
        sharded = costs.pipelines() if layout.candidate.weight_shards > 1 else whole
        gradients_s = simulated_s(sharded, costs.buckets()) + norm_down_s + norm_around_s + tied_s
    stages_s = [list(map(add, each.times.forward_s, each.times.backward_s)) for each in compute_alone]
    microbatch_s = tuple(
        tuple(sum(seconds[rank :: layout.candidate.pp]) for seconds in stages_s) for rank in range(layout.candidate.pp)
    )
    busiest_s = min(alone_s, max(max(map(mul, by_replica, layout.microbatches)) for by_replica in microbatch_s))
    step_s = gradients_s + costs.optimizer_s()
    memory = layout.mode.rank_memory_bytes(job.model, costs.execution, layout.candidate.pp, max(layout.microbatches))
    layers = [sum(layout.layers[rank :: layout.candidate.pp]) for rank in range(layout.candidate.pp)]
    return Prediction(
        step_s=step_s,
        compute_s=busiest_s,
        bubble_s=alone_s - busiest_s if alone_s > busiest_s * (1 + ROUNDING) else 0.0,
        exposed_tp_s=without_edges_s - alone_s,
        exposed_edge_s=without_dp_s - without_edges_s,
        exposed_dp_s=gradients_s - without_dp_s,
        optimizer_s=step_s - gradients_s,
        tokens_per_s=job.global_batch_size * job.model.seq_length / step_s if step_s else 0.0,
        memory_bytes=tuple(memory),
        host_memory_bytes=host_bytes_by_rank(job, costs.execution, layers),
        microbatch_compute_s=microbatch_s,
        traffic=count_traffic(job, layout),
    )


def predict_step_s(problem: Problem, layout: Layout) -> float:
    """Return the seconds of the step that `predict` would compute, without its parts."""
    costs = LayoutCosts(problem, layout)
    return costs.step_s(costs.buckets())


def predict_timeline(problem: Problem, layout: Layout, replica: int = 0) -> tuple[Span, ...]:
    """Return every action of one replica's simulated step."""
    costs, mode, count = LayoutCosts(problem, layout), layout.mode, layout.microbatches[replica]
    schedule = make_schedule(*mode.order(layout.candidate.pp, count))
    return spans_of(schedule, run_sharing(costs.pipelines(), costs.buckets(), costs.most_faster)[replica])
