"""Bytes that a step sends and receives over every interface."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from holmes_core.records.job import Job
from holmes_core.records.plan import InterfaceTraffic, PlanGroup, PlanRank
from holmes_runtime.config.model_shape import gradient_order
from holmes_runtime.config.rank_grid import EXPERT_AXES, REPLICA_AXES, Axis
from holmes_runtime.config.schedule import ActionKind, make_schedule
from planner.cost.collectives import (
    Peers,
    context_outside_bytes,
    routed_bytes,
    routed_parts,
    shard_exchange_bytes,
)
from planner.cost.counts import Execution, edge_bytes, tied_bytes
from planner.cost.engines import engine_of
from planner.cost.trained import dense_layers
from planner.layout.layout import Layout
from planner.problem.groups import expert_ranks
from planner.schedule.buckets import part_parameters


def count_traffic(job: Job, layout: Layout) -> tuple[InterfaceTraffic, ...]:
    """Return the bytes per step on each interface that carries any, sorted by host, interface and network."""
    sent: dict[tuple[str, str, str], float] = defaultdict(float)
    received: dict[tuple[str, str, str], float] = defaultdict(float)
    execution, tp = layout.candidate.execution(job), layout.candidate.tp
    for group in layout.groups_of_first_shards:
        flows = _flows(job, execution, layout, group)
        for sender, receiver, size in flows:
            hosts = layout.ranks[group.ranks[sender]].host, layout.ranks[group.ranks[receiver]].host
            sent[hosts[0], group.interfaces[sender], group.network] += size * tp
            received[hosts[1], group.interfaces[receiver], group.network] += size * tp
    return tuple(
        InterfaceTraffic(
            host=key[0], netdev=key[1], network=key[2], sent_bytes=round(sent[key]), received_bytes=round(received[key])
        )
        for key in sorted({*sent, *received})
        if sent[key] or received[key]
    )


@dataclass(frozen=True)
class ClusterFlow:
    """Bytes per step that hosts of cluster `sender` send to other hosts, in `receiver`, for groups of one axis.

    `pp_rank` is the groups' pipeline rank, for an edge that of the earlier stage. `busiest_host` sends the most of
    them: `host_bytes`.
    """

    axis: Axis
    pp_rank: int
    sender: str
    receiver: str
    size_bytes: float
    busiest_host: str
    host_bytes: float


def cluster_flows(job: Job, layout: Layout) -> tuple[ClusterFlow, ...]:
    """Return the bytes that travel inside clusters and between them, in the order of the layout's groups."""
    execution, sizes = layout.candidate.execution(job), dict[tuple[Axis, int, str, str], dict[str, float]]()
    for group in layout.groups_of_first_shards:
        ranks = [layout.ranks[rank] for rank in group.ranks]
        clusters, hosts = Counter(rank.cluster for rank in ranks), Counter(rank.host for rank in ranks)
        for sender, receiver, size in _flows(job, execution, layout, group):
            one, other = ranks[sender], ranks[receiver]
            shares = {other.cluster: 1.0}
            if sender == receiver:  # an all-to-all: each cluster's share follows its ranks on other hosts
                outside = clusters - Counter({one.cluster: hosts[one.host]})
                shares = {cluster: number / outside.total() for cluster, number in outside.items()}
            for cluster, share in shares.items():
                key = (group.axis, ranks[0].pp_rank, one.cluster, cluster)
                by_host = sizes.setdefault(key, {})
                by_host[one.host] = by_host.get(one.host, 0.0) + size * share * layout.candidate.tp
    found = []
    for key, sent in sizes.items():
        busiest = max(sent, key=sent.__getitem__)
        found.append(ClusterFlow(*key, sum(sent.values()), busiest, sent[busiest]))
    return tuple(found)


def across_bytes(job: Job, layout: Layout) -> int:
    """Return the bytes per step that hosts send to hosts of other clusters."""
    return round(sum(flow.size_bytes for flow in cluster_flows(job, layout) if flow.sender != flow.receiver))


Flows = Sequence[tuple[int, int, float]]
"""(sender, receiver, bytes per step) of traffic that leaves a host, as positions in a group."""


def _flows(job: Job, execution: Execution, layout: Layout, group: PlanGroup) -> Flows:
    if group.axis in (*REPLICA_AXES, *EXPERT_AXES):
        return _sync_flows(job, execution, layout, group)
    if group.axis == "ep":
        return _token_flows(job, execution, layout, group)
    if group.axis == "cp":
        return _context_flows(job, execution, layout, group)
    if group.axis == "tied":
        return _tied_flows(tied_bytes(job.model, execution), layout, group)
    return _edge_flows(edge_bytes(job.model, execution, layout.codec_of(group)), layout, group)


def _tied_flows(size: int, layout: Layout, group: PlanGroup) -> Flows:
    """Return both copies' gradients, each sent to the other's rank."""
    first, last = (layout.ranks[rank].host for rank in group.ranks)
    return () if first == last else ((0, 1, float(size)), (1, 0, float(size)))


def _edge_flows(message: int, layout: Layout, group: PlanGroup) -> Flows:
    """Return one message per micro-batch and chunk; from the last pipeline rank to the first, one chunk less."""
    earlier, later = (layout.ranks[rank] for rank in group.ranks)
    if earlier.host == later.host:
        return ()
    stages = layout.mode.chunks - (earlier.pp_rank == layout.candidate.pp - 1)
    size = float(message * layout.microbatches[earlier.dp_rank] * stages)
    return ((0, 1, size),) if group.axis == "pp_forward" else ((1, 0, size),)


def _sync_flows(job: Job, execution: Execution, layout: Layout, group: PlanGroup) -> Flows:
    """Return the reduce-scatter of gradients and the gathering of weights, with NCCL around a ring of the members.

    Gloo gathers around the same ring, but its reduce-scatter is an all-to-all: every member sends each member on other
    hosts its part, and receives as much. Under ZeRO-3, every micro-batch does all of this.
    """
    n, first = len(group.ranks), layout.ranks[group.ranks[0]]
    hosts = [layout.ranks[rank].host for rank in group.ranks]
    on_host = max(Counter(hosts).values()) * layout.candidate.tp
    parameters = layout.exchanged_parameters(job, first.pp_rank, on_host)
    if expert_ranks(job) > layout.candidate.tp:  # experts have groups of their own
        parameters = layout.candidate.weighed_parameters(job, layout.layers, first.pp_rank, 0.0)
        if group.axis in EXPERT_AXES:
            parameters = layout.candidate.rank_parameters(job, layout.layers, first.pp_rank) - parameters
    num_microbatches, engine = layout.microbatches[first.dp_rank], engine_of(job)
    gathered_parameters = parameters
    if group.axis == "dp" and layout.candidate.weight_shards > 1:
        gathered_parameters = _gathered_parameters(job, layout, first)
        parameters *= num_microbatches if engine.reduces != "last" else 1
    if group.axis == "dp_across":  # a rank's part after its cluster's replicas were summed
        parameters = gathered_parameters = parameters * n // layout.candidate.dp
    ring = [(i, (i + 1) % n) for i in range(n) if hosts[i] != hosts[(i + 1) % n]]
    reduced_bytes, gathered_bytes = engine.travels_bytes(execution.value_bytes)
    if group.axis == "dp_across":
        reduced_bytes, gathered_bytes = engine.across_bytes(
            execution.value_bytes, layout.candidate.pp, num_microbatches
        )
    gathered = shard_exchange_bytes(gathered_bytes * gathered_parameters, n)
    if job.device == "cuda":
        reduced = shard_exchange_bytes(reduced_bytes * parameters, n)
        routed = _routed_flows(job, execution, layout, first, on_host) if job.ep > expert_ranks(job) else 0.0
        alike = [(i, i, routed) for i in range(n)] if routed else []
        shared = _context_flows(job, execution, layout, group) if group.axis == "dp" and not job.is_bundled else ()
        return [*((i, j, gathered + reduced) for i, j in ring), *alike, *shared]
    members, part = Counter(hosts), reduced_bytes * parameters / n
    # A member stands for its receivers: its own interface gets back the bytes that they send.
    return [(i, j, gathered) for i, j in ring] + [(i, i, part * (n - members[host])) for i, host in enumerate(hosts)]


def _context_flows(job: Job, execution: Execution, layout: Layout, group: PlanGroup) -> Flows:
    """Return the keys and values that replicas with parts of the same sequences pass on to the next one's host."""
    members = [layout.ranks[rank] for rank in group.ranks]
    held = sum(layout.layers[stage] for stage in layout.stages_of(members[0].pp_rank))
    size = float(context_outside_bytes(job.model, execution) * held * layout.microbatches[members[0].dp_rank])
    rings = [range(first, first + job.cp) for first in range(0, len(members), job.cp)]
    pairs = [(i, ring[(at + 1) % job.cp]) for ring in rings for at, i in enumerate(ring)]
    return [(i, j, size) for i, j in pairs if members[i].host != members[j].host]


def _token_flows(job: Job, execution: Execution, layout: Layout, group: PlanGroup) -> Flows:
    """Return the rows that replicas send to experts on other hosts, and back; each receives as many."""
    members = [layout.ranks[rank] for rank in group.ranks]
    hosts = Counter(rank.host for rank in members)
    sizes = [_routed_flows(job, execution, layout, rank, hosts[rank.host] * execution.tp) for rank in members]
    return [(i, i, size) for i, size in enumerate(sizes) if size]


def _routed_flows(job: Job, execution: Execution, layout: Layout, rank: PlanRank, on_host: int) -> float:
    """Return the bytes per step that a rank sends to experts and to tokens' own ranks on other hosts and gets back."""
    dense = dense_layers(job.model, layout.layers)
    layers = sum(layout.layers[stage] - dense[stage] for stage in layout.stages_of(rank.pp_rank))
    outside = routed_parts(job.model, execution, Peers(on_host, None)).outside
    times = (6 if execution.recompute == "full" else 4) * layers * layout.microbatches[rank.dp_rank]
    return routed_bytes(job.model, execution) * outside * times


def _gathered_parameters(job: Job, layout: Layout, rank: PlanRank) -> int:
    """Return the number of parameters that `rank` gathers in a step under ZeRO-3, over all its micro-batches.

    A layer is gathered for a forward and for a backward, but only once if one directly follows the other. No backward
    needs the embedding or frozen first layers.
    """
    total, previous = 0, None
    schedule = make_schedule(*layout.mode.order(layout.candidate.pp, layout.microbatches[rank.dp_rank]))
    for action in schedule[rank.pp_rank]:
        is_first, is_last = action.stage == 0, action.stage == layout.last_stage
        parts = gradient_order(layout.layers[action.stage], is_first, is_last)
        parameters = part_parameters(job.model, layout.candidate.tp, is_first, job.trainable)
        with_backward = len(parts) - is_first - (job.trainable.frozen_layers if job.trainable is not None else 0)
        used = [(action.stage, position, part) for position, part in enumerate(parts)]
        for layer in used[::-1] if action.kind is ActionKind.FORWARD else used:
            if layer[1] >= with_backward and action.kind is not ActionKind.FORWARD:
                continue
            total += parameters[layer[2]].whole if layer != previous else 0
            previous = layer
    return total
