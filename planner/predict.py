"""What a step costs on its placement: simulated seconds in parts, memory per rank, bytes on every interface.

The parts come from three simulations that differ in what takes time: compute alone; compute and edges; everything.
compute_s is what the busiest rank computes; bubble_s the rest of the first simulation; exposed_edge_s what edges add;
exposed_dp_s what gradient averaging adds. They add up to step_s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from holmes_core.job import Job
from holmes_core.plan import Axis, InterfaceTraffic, PlanGroup, PlanRank, Prediction
from holmes_runtime.schedule import one_f_one_b
from planner.candidates import Candidate
from planner.cost import (
    VALUE_BYTES,
    all_reduce_s,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    message_bytes,
    message_s,
    ring_bytes,
    stage_parameters,
)
from planner.fleet import Fleet, FleetHost
from planner.networks import demanded_groups
from planner.simulate import Bucket, PipelineTimes, simulate
from planner.terms import compute_s, stage_memory_bytes

FORWARD_PART = 1 / 3  # of a layer's FLOPs; the backward is twice the forward (Narayanan et al., 2021)


@dataclass(frozen=True)
class Laid:
    """A placement written out: ranks, their groups, the layers of each stage."""

    candidate: Candidate
    layers: tuple[int, ...]
    ranks: tuple[PlanRank, ...]
    groups: tuple[PlanGroup, ...]


def predict(job: Job, fleet: Fleet, laid: Laid) -> Prediction:
    """The prediction for `laid`."""
    candidate = laid.candidate
    num_microbatches = candidate.num_microbatches(job.global_batch_size)
    schedule = one_f_one_b(candidate.pp, num_microbatches)
    replicas = [_pipeline_times(job, fleet, laid, replica) for replica in range(candidate.dp)]
    buckets = [_buckets(job, fleet, laid, stage) for stage in range(candidate.pp)] if candidate.dp > 1 else None
    compute = max(
        num_microbatches * (forward + backward)
        for times in replicas
        for forward, backward in zip(times.forward_s, times.backward_s, strict=True)
    )
    without_edges_s = simulate(schedule, [times.without_edges() for times in replicas])
    without_dp_s = simulate(schedule, replicas)
    whole_s = simulate(schedule, replicas, buckets)
    return Prediction(
        step_s=whole_s,
        compute_s=compute,
        bubble_s=max(0.0, without_edges_s - compute),
        exposed_edge_s=without_dp_s - without_edges_s,
        exposed_dp_s=whole_s - without_dp_s,
        tokens_per_s=job.global_batch_size * job.model.seq_length / whole_s if whole_s else 0.0,
        memory_bytes=tuple(stage_memory_bytes(job, candidate, stage, held) for stage, held in enumerate(laid.layers)),
        traffic=count_traffic(job, laid),
    )


def count_traffic(job: Job, laid: Laid) -> tuple[InterfaceTraffic, ...]:
    """Bytes per step on each interface that carries any, sorted by host, interface and network."""
    sent: dict[tuple[str, str, str], int] = defaultdict(int)
    received: dict[tuple[str, str, str], int] = defaultdict(int)
    for member, group in zip(demanded_groups(laid.ranks), laid.groups, strict=True):
        size = _bytes_per_member(job, laid, group.axis, member.ranks[0].pp_rank)
        for sender, receiver in member.crossings():
            sent[member.ranks[sender].host, group.interfaces[sender], group.network] += size
            received[member.ranks[receiver].host, group.interfaces[receiver], group.network] += size
    return tuple(
        InterfaceTraffic(host=key[0], netdev=key[1], network=key[2], sent_bytes=sent[key], received_bytes=received[key])
        for key in sorted({*sent, *received})
    )


def _bytes_per_member(job: Job, laid: Laid, axis: Axis, stage: int) -> int:
    """Bytes one member sends to its neighbour per step. Tensor groups never leave a host."""
    candidate = laid.candidate
    if axis == "tp":
        return 0
    if axis == "dp":
        return round(ring_bytes(_gradient_bytes(job, laid, stage), candidate.dp))
    message = message_bytes(job.model, candidate.micro_batch_size) // candidate.tp
    return message * candidate.num_microbatches(job.global_batch_size)


def _gradient_bytes(job: Job, laid: Laid, stage: int) -> float:
    """Bytes of the gradients of one rank of `stage`."""
    is_first, is_last = stage == 0, stage == laid.candidate.pp - 1
    return VALUE_BYTES * stage_parameters(job.model, laid.layers[stage], is_first, is_last) / laid.candidate.tp


def _hosts(fleet: Fleet) -> Mapping[str, FleetHost]:
    return {host.name: host for cluster in fleet.clusters for host in cluster.hosts}


def _layer_s(job: Job, host: FleetHost, candidate: Candidate) -> tuple[float, float]:
    """Seconds of one layer's forward and backward for one micro-batch."""
    emulate = job.compute.emulate
    if emulate is not None:
        return emulate.forward_s_per_layer, emulate.backward_s_per_layer
    layer_s, _ = compute_s(job, host, candidate)
    return layer_s * FORWARD_PART, layer_s * (1 - FORWARD_PART)


def _pipeline_times(job: Job, fleet: Fleet, laid: Laid, replica: int) -> PipelineTimes:
    """The seconds of one replica, each stage at the speed of its own host."""
    hosts, candidate, last = _hosts(fleet), laid.candidate, laid.candidate.pp - 1
    host_of = {rank.pp_rank: hosts[rank.host] for rank in laid.ranks if rank.dp_rank == replica}
    forward, backward = [], []
    for stage, held in enumerate(laid.layers):
        layer_forward_s, layer_backward_s = _layer_s(job, host_of[stage], candidate)
        head_s = compute_s(job, host_of[stage], candidate)[1] if stage == last else 0.0
        forward.append(held * layer_forward_s + head_s * FORWARD_PART)
        backward.append(held * layer_backward_s + head_s * (1 - FORWARD_PART))
    return PipelineTimes(
        tuple(forward),
        tuple(backward),
        _edge_s(job, laid, replica, "pp_forward"),
        _edge_s(job, laid, replica, "pp_backward"),
    )


def _edge_s(job: Job, laid: Laid, replica: int, axis: Axis) -> tuple[float, ...]:
    """By edge, seconds of one message of `replica`; with tensor shards, of the slowest one's part."""
    seconds = [0.0] * (laid.candidate.pp - 1)
    message = message_bytes(job.model, laid.candidate.micro_batch_size) / laid.candidate.tp
    for member, group in zip(demanded_groups(laid.ranks), laid.groups, strict=True):
        if group.axis == axis and member.ranks[0].dp_rank == replica and member.crossings():
            assert group.bandwidth_bytes_per_s is not None
            edge = member.ranks[0].pp_rank
            seconds[edge] = max(seconds[edge], message_s(message, group.bandwidth_bytes_per_s))
    return tuple(seconds)


def _buckets(job: Job, fleet: Fleet, laid: Laid, stage: int) -> tuple[Bucket, ...]:
    """The gradients of a stage in the order its backward makes them: head, layers from the last, embedding."""
    candidate, hosts, model = laid.candidate, _hosts(fleet), job.model
    bandwidths = [
        group.bandwidth_bytes_per_s
        for member, group in zip(demanded_groups(laid.ranks), laid.groups, strict=True)
        if group.axis == "dp" and member.ranks[0].pp_rank == stage and member.crossings()
    ]
    slowest = min((b for b in bandwidths if b is not None), default=None)
    host = next(hosts[rank.host] for rank in laid.ranks if rank.pp_rank == stage)
    _, layer_backward_s = _layer_s(job, host, candidate)
    head_backward_s = compute_s(job, host, candidate)[1] * (1 - FORWARD_PART)

    def bucket(backward_s: float, parameters: int) -> Bucket:
        size = VALUE_BYTES * parameters / candidate.tp
        return Bucket(backward_s, 0.0 if slowest is None else all_reduce_s(size, candidate.dp, slowest))

    buckets = [bucket(layer_backward_s, layer_parameters(model))] * laid.layers[stage]
    if stage == candidate.pp - 1:
        buckets.insert(0, bucket(head_backward_s, head_parameters(model)))
    if stage == 0:
        buckets.append(bucket(0.0, embedding_parameters(model)))
    return tuple(buckets)
