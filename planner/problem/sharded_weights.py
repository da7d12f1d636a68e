"""Seconds that ZeRO-3 adds to a layer: its weights are gathered and its gradients reduced for every micro-batch.

The next layer's weights are gathered while a layer computes; in the backward, the previous layer's gradients are
reduced as well. A forward takes no less than one gathering, a backward no less than a gathering and a reduction. On
GPUs, a part of the traffic's seconds adds to compute, since collectives use its cores and memory. The first gathering
of a step and its last reduction are priced as in ZeRO-1. The gathering of the embedding is assumed to be hidden by the
layer before it. Source: Zhao et al., PyTorch FSDP, 2023.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from holmes_core.records.job import Job
from planner.cost.collectives import PassTimes, exchange_hops, exchange_share, shard_exchange_bytes
from planner.cost.counts import GRADIENT_BYTES
from planner.cost.eager import PassBytes
from planner.cost.engines import engine_of, expert_shards
from planner.cost.trained import ParameterCount, backward_share, head_of, layers_of
from planner.problem.candidates import Candidate
from planner.problem.coefficients import Coefficients
from planner.problem.exchange_rates import rings_on_nic, site_latency_s, sync_s_per_byte
from planner.problem.fleet import HostClass

# Share of the traffic's seconds on GPUs, fitted together with the speeds of A100 and H100 to every second row of V11
# to V15 of docs/cost-model.md. CPUs: assumption.
EXPOSED = 0.55


class WeightTraffic(NamedTuple):
    """Seconds of gathering the weights of one layer and of reducing its gradients, and the part compute cannot hide.

    Only the `backward_share` of layers with a backward is gathered for it.
    """

    gather_s: float
    reduce_s: float
    exposed: float = 0.0
    backward_share: float = 1.0

    def under(self, compute: PassTimes) -> PassTimes:
        """Return the seconds of a layer's forward and backward if this traffic overlaps `compute`."""
        both_s = self.backward_share * self.gather_s + self.reduce_s
        return PassTimes(
            max(compute.forward_s + self.exposed * self.gather_s, self.gather_s),
            max(compute.backward_s + self.exposed * both_s, both_s),
        )


def exposed_part(job: Job) -> float:
    """Return the part of the traffic that compute cannot hide; 0 for an emulated step."""
    return EXPOSED if job.device == "cuda" and job.compute.emulate is None else 0.0


def with_weight_traffic(job: Job, coeffs: Coefficients) -> Coefficients:
    """Return the coefficients with weight traffic in the seconds of layers and head; unchanged under ZeRO-1.

    A class is priced as if it held all replicas that share weights. `weight_bytes` are for several classes that do.
    """
    candidate = coeffs.candidate
    shards = candidate.weight_shards
    if shards == 1:
        return coeffs
    inside = replace(coeffs, candidate=candidate._replace(dp=shards))
    ratio = shard_exchange_bytes(1.0, shards) / shard_exchange_bytes(1.0, candidate.dp)
    layers, heads = [], []
    for c, (layer, head) in enumerate(zip(coeffs.layer, coeffs.head, strict=True)):
        rings = rings_on_nic(inside, (c,))
        share = exchange_share(shards, job.device) if rings else 1.0
        per_byte = ratio * sync_s_per_byte(inside, (c,), rings) / share
        hops, latency_s = exchange_hops(shards, job.device), site_latency_s(inside, (c,)) if rings else 0.0
        hops_s = (hops.gather + hops.late) * latency_s, (hops.reduce + hops.late) * latency_s
        layers.append(_layer_traffic(job, candidate, per_byte, hops_s).under(layer))
        parameters = head_of(job.model, job.trainable, candidate.tp)
        heads.append(_traffic(job, candidate, parameters, per_byte, hops_s).under(head))
    weight_bytes = _layer_bytes(job, candidate) if candidate.copies == 1 else None
    return replace(coeffs, layer=tuple(layers), head=tuple(heads), weight_bytes=weight_bytes)


def _layer_bytes(job: Job, candidate: Candidate) -> PassBytes:
    """Return the bytes of a layer on all its shards, as they travel between hosts."""
    traffic = _layer_traffic(job, candidate, 1 / exchange_share(candidate.weight_shards, job.device), (0.0, 0.0))
    return PassBytes(traffic.gather_s, traffic.backward_share * traffic.gather_s + traffic.reduce_s)


def least_traffic(job: Job, candidate: Candidate, hosts: HostClass) -> WeightTraffic:
    """Return a lower bound on the traffic of a layer on hosts of that class."""
    shards, hardware = candidate.weight_shards, hosts.hardware
    if shards == 1:
        return WeightTraffic(0.0, 0.0)
    exchange = shard_exchange_bytes(1.0, shards)
    if shards <= hosts.group_slots_per_host(candidate.tp):
        per_byte = exchange / candidate.tp / hardware.slot.inside.bandwidth_bytes_per_s
    else:
        per_byte = exchange / hardware.rates.fabric_bytes_per_s if hardware.rates.fabric_bytes_per_s else 0.0
    return _layer_traffic(job, candidate, per_byte, (0.0, 0.0))


def _layer_traffic(job: Job, candidate: Candidate, s_per_byte: float, hops_s: tuple[float, float]) -> WeightTraffic:
    """Return the traffic of a layer, as the mean of all layers."""
    layer = layers_of(job.model, job.trainable, 1, candidate.tp, expert_shards(job, candidate.tp))
    traffic = _traffic(job, candidate, layer, s_per_byte, hops_s)
    return traffic._replace(backward_share=backward_share(job.model, job.trainable))


def _traffic(
    job: Job, candidate: Candidate, parameters: ParameterCount, s_per_byte: float, hops_s: tuple[float, float]
) -> WeightTraffic:
    """Return a part's traffic on one tensor shard. All shards share the network. Frozen weights are gathered too."""
    gathered_s, reduced_s = (
        candidate.tp * count * size * s_per_byte
        for count, size in ((parameters.whole, job.value_bytes), (parameters.trained, GRADIENT_BYTES))
    )
    reduces = parameters.trained > 0 and engine_of(job).reduces != "last"
    return WeightTraffic(gathered_s + hops_s[0], (reduced_s + hops_s[1]) * reduces, exposed_part(job))
