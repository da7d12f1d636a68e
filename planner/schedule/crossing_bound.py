"""A lower bound on traffic between clusters if no cluster has room for all tensor groups of a candidate.

One of these cases holds, and the least of their three bounds is a bound for all placements:

- No edge crosses. Each replica is whole in its cluster, so the gradients of every stage cross.
- Edges of all replicas cross. Every micro-batch is sent forward over the shared network at least once. Neither a host's
  NIC nor a replica's own edge exceeds its rate.
- Edges of some replicas cross and others are whole. Some stage then has replicas in several clusters, so its gradients
  cross, and so do a replica's micro-batches. The fewer layers that stage has, the more the others compute.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import NamedTuple

from planner.cost.counts import edge_bytes
from planner.cost.packing import lossiest_codec
from planner.problem.candidates import Candidate
from planner.problem.problem import Problem


class LayerSeconds(NamedTuple):
    """Seconds of one layer on the fastest slots for all micro-batches of the busiest replica, and for a stage whose
    gradients cross, which also exchanges them."""

    whole_s: float
    crossing_s: float


def crossing_bound_s(problem: Problem, candidate: Candidate, layer: LayerSeconds) -> float:
    """Return the bound in seconds; 0 if a cluster has room for the candidate or a rate is not known."""
    slots = Counter[str]()
    for each in problem.fleet.classes:
        slots[each.cluster] += each.num_group_slots(candidate.tp)
    if candidate.pp * candidate.dp <= max(slots.values()):
        return 0.0
    num_layers = problem.job.model.num_layers
    none_s = -(-num_layers // candidate.pp) * layer.crossing_s if candidate.dp > 1 else inf
    if candidate.pp == 1:
        return none_s
    per_replica_s, all_s = _edges_s(problem, candidate)
    if candidate.dp == 1:
        return all_s
    crossing_s, whole_s = layer.crossing_s, layer.whole_s
    together_s = crossing_s * whole_s / (whole_s + (candidate.pp - 1) * crossing_s)  # per layer, over all stages
    return min(none_s, all_s, max(per_replica_s, crossing_s, num_layers * together_s))


def _edges_s(problem: Problem, candidate: Candidate) -> tuple[float, float]:
    """Return the seconds of one replica's messages over its edge, and of all replicas' over all NICs."""
    job, classes = problem.job, problem.fleet.classes
    rates = [(each.hardware.rates.shared_bytes_per_s, len(each.hosts)) for each in classes]
    if any(not rate for rate, _ in rates):
        return 0.0, 0.0
    size = candidate.tp * edge_bytes(job.model, candidate.execution(job), lossiest_codec(job))
    total = job.batch_parts // candidate.micro_batch_size
    fastest, together = max(rate or 0.0 for rate, _ in rates), sum((rate or 0.0) * count for rate, count in rates)
    one_s = total // candidate.dp * size / fastest
    return one_s, max(one_s, total * size / together)
