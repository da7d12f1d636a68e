"""The numbers one candidate's integer program and closed form work with: seconds, bytes and capacities by cluster."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from holmes_core.inventory import Inventory
from holmes_core.job import Job
from planner.candidates import Candidate
from planner.cost import (
    VALUE_BYTES,
    embedding_parameters,
    head_flops,
    head_parameters,
    in_flight,
    layer_flops,
    layer_parameters,
    message_bytes,
    message_s,
    rank_memory_bytes,
    ring_bytes,
)
from planner.fleet import Fleet, FleetCluster, FleetHost
from planner.networks import require_bandwidth, route


@dataclass(frozen=True)
class Terms:
    """Parameters of one candidate on one fleet; tuples are by cluster unless said otherwise.

    A cluster counts as slow as its slowest host, as small as its smallest GPU and as narrow as its narrowest NIC.
    `layer_s` and `head_s` are forward and backward of one micro-batch. An edge's seconds are one message in one
    direction, with all replicas a host holds sending at once. `*_sync_s_per_byte` is the all-reduce of one gradient
    byte of a whole stage, not hidden by anything. Traffic inside a host is free.
    """

    candidate: Candidate
    num_layers: int
    num_microbatches: int
    cluster_names: tuple[str, ...]
    places: tuple[int, ...]
    capacity: tuple[tuple[int, ...], ...]  # [stage][cluster]: most layers that memory allows
    layer_s: tuple[float, ...]
    head_s: tuple[float, ...]
    fabric_edge_s: tuple[float, ...]
    shared_edge_s: tuple[float, ...]
    fabric_sync_s_per_byte: tuple[float, ...]
    shared_sync_s_per_byte: tuple[float, ...]
    stage_groups_per_nic: tuple[int, ...]  # most stages of one host whose dp group leaves it, if they span clusters
    layer_gradient_bytes: int
    first_gradient_bytes: int
    last_gradient_bytes: int

    def extra_gradient_bytes(self, stage: int) -> int:
        """Gradient bytes of the embedding on the first stage and of the head on the last."""
        is_first, is_last = stage == 0, stage == self.candidate.pp - 1
        return self.first_gradient_bytes * is_first + self.last_gradient_bytes * is_last


@dataclass(frozen=True)
class Links:
    """Bytes/s of each cluster's slowest NIC: on its fabric (None for a single host), on the network all share.

    The latter is None where the fleet is a single cluster.
    """

    fabric: tuple[float | None, ...]
    shared: tuple[float | None, ...]


def no_links(fleet: Fleet) -> Links:
    """The links of candidates that have one tensor group, or one host: none is needed."""
    nothing = (None,) * len(fleet.clusters)
    return Links(nothing, nothing)


def read_links(inventory: Inventory, job: Job, fleet: Fleet) -> Links:
    """The links of `fleet`. Raises HolmesError naming host and netdev where a bandwidth is not known."""
    fabric: list[float | None] = []
    for cluster in fleet.clusters:
        names = [host.name for host in cluster.hosts]
        fabric.append(min(_bandwidths(inventory, job, names).values()) if len(names) > 1 else None)
    if len(fleet.clusters) == 1:
        return Links(tuple(fabric), (None,))
    shared = _bandwidths(inventory, job, [host.name for cluster in fleet.clusters for host in cluster.hosts])
    return Links(tuple(fabric), tuple(min(shared[host.name] for host in cluster.hosts) for cluster in fleet.clusters))


def _bandwidths(inventory: Inventory, job: Job, names: list[str]) -> dict[str, float]:
    return dict(zip(names, require_bandwidth(route(inventory, job, names), names), strict=True))


def make_terms(job: Job, fleet: Fleet, links: Links, candidate: Candidate) -> Terms:
    """The terms of `candidate` on `fleet`."""
    clusters = fleet.clusters
    seconds = [_compute_s(job, cluster, candidate) for cluster in clusters]
    places = [tuple(host.num_places(candidate.tp) for host in cluster.hosts) for cluster in clusters]
    message = message_bytes(job.model, candidate.micro_batch_size)
    at_once = [min(candidate.dp, max(hosts)) for hosts in places]
    ring = ring_bytes(1.0, candidate.dp)
    return Terms(
        candidate=candidate,
        num_layers=job.model.num_layers,
        num_microbatches=candidate.num_microbatches(job.global_batch_size),
        cluster_names=tuple(cluster.name for cluster in clusters),
        places=tuple(sum(hosts) for hosts in places),
        capacity=_capacity(job, fleet, candidate),
        layer_s=tuple(layer for layer, _ in seconds),
        head_s=tuple(head for _, head in seconds),
        fabric_edge_s=tuple(_free_or(message * n, b) for n, b in zip(at_once, links.fabric, strict=True)),
        shared_edge_s=tuple(_free_or(message * n, b) for n, b in zip(at_once, links.shared, strict=True)),
        fabric_sync_s_per_byte=tuple(
            _free_or(ring * rings_at_once(hosts, candidate.dp), b)
            for hosts, b in zip(places, links.fabric, strict=True)
        ),
        shared_sync_s_per_byte=tuple(_free_or(ring, b) for b in links.shared),
        stage_groups_per_nic=tuple(max(hosts) for hosts in places),
        layer_gradient_bytes=VALUE_BYTES * layer_parameters(job.model),
        first_gradient_bytes=VALUE_BYTES * embedding_parameters(job.model),
        last_gradient_bytes=VALUE_BYTES * head_parameters(job.model),
    )


def rings_at_once(places: tuple[int, ...], dp: int) -> int:
    """Most dp groups of one host that leave it, when stages of `dp` places fill hosts of `places` one after another."""
    owners = [host for host, count in enumerate(places) for _ in range(count)]
    blocks = [owners[start : start + dp] for start in range(0, len(owners) - dp + 1, dp)]
    leaving = [set(block) for block in blocks if len(set(block)) > 1]
    return max((sum(host in hosts for hosts in leaving) for host in range(len(places))), default=0)


def _free_or(size_bytes: float, bandwidth: float | None) -> float:
    """Seconds of `size_bytes`, or 0 where no network is between the ranks."""
    return 0.0 if bandwidth is None else message_s(size_bytes, bandwidth)


def _compute_s(job: Job, cluster: FleetCluster, candidate: Candidate) -> tuple[float, float]:
    """Seconds of forward and backward of one layer and of the head on the cluster's slowest host."""
    seconds = [compute_s(job, host, candidate) for host in cluster.hosts]
    return max(layer for layer, _ in seconds), max(head for _, head in seconds)


def compute_s(job: Job, host: FleetHost, candidate: Candidate) -> tuple[float, float]:
    """Seconds of forward and backward of one layer and of the head, for one micro-batch on one slot of `host`.

    An emulated layer takes the seconds in job.yaml whatever the micro-batch, and an emulated head none.
    """
    emulate = job.compute.emulate
    if emulate is not None:
        return emulate.forward_s_per_layer + emulate.backward_s_per_layer, 0.0
    assert host.flops_per_s is not None
    speed = host.flops_per_s * candidate.tp
    batch = candidate.micro_batch_size
    return layer_flops(job.model, batch) / speed, head_flops(job.model, batch) / speed


def stage_memory_bytes(job: Job, candidate: Candidate, stage: int, num_layers: int) -> int:
    """Bytes one rank of `stage` needs when it holds `num_layers` layers."""
    return rank_memory_bytes(
        job.model,
        candidate.micro_batch_size,
        num_layers,
        in_flight(stage, candidate.pp, candidate.num_microbatches(job.global_batch_size)),
        is_first=stage == 0,
        is_last=stage == candidate.pp - 1,
        tp=candidate.tp,
    )


def _capacity(job: Job, fleet: Fleet, candidate: Candidate) -> tuple[tuple[int, ...], ...]:
    memories = []
    for cluster in fleet.clusters:
        known = [host.memory_bytes for host in cluster.hosts if host.memory_bytes is not None]
        memories.append(min(known, default=None))
    by_stage = []
    for stage in range(candidate.pp):
        by_stage.append(tuple(_most_layers(job, candidate, stage, memory) for memory in memories))
    return tuple(by_stage)


def _most_layers(job: Job, candidate: Candidate, stage: int, memory_bytes: int | None) -> int:
    """Most layers of `stage` that `memory_bytes` holds; what is not known limits nothing."""
    layers = job.model.num_layers
    if memory_bytes is None:
        return layers
    fitting = bisect_right(
        range(layers + 1), memory_bytes, key=lambda held: stage_memory_bytes(job, candidate, stage, held)
    )
    return max(0, fitting - 1)
