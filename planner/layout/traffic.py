"""Bytes that a step sends and receives over every interface."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from holmes_core.records.job import Job
from holmes_core.records.plan import InterfaceTraffic, PlanGroup
from planner.cost.collectives import shard_exchange_bytes
from planner.cost.counts import GRADIENT_BYTES, Execution, edge_bytes
from planner.layout.layout import Layout


def count_traffic(job: Job, layout: Layout) -> tuple[InterfaceTraffic, ...]:
    """Bytes per step on each interface that carries any, sorted by host, interface and network."""
    sent: dict[tuple[str, str, str], float] = defaultdict(float)
    received: dict[tuple[str, str, str], float] = defaultdict(float)
    execution, tp = layout.candidate.execution(job), layout.candidate.tp
    for group in layout.groups_of_first_shards:
        is_sync = group.axis in ("dp", "dp_across")
        message = edge_bytes(job.model, execution, layout.codec_of(group))
        flows = _sync_flows(job, execution, layout, group) if is_sync else _edge_flows(message, layout, group)
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


Flows = Sequence[tuple[int, int, float]]
"""(sender, receiver, bytes a step) of what leaves a host, as positions in a group."""


def _edge_flows(message: int, layout: Layout, group: PlanGroup) -> Flows:
    """A message a micro-batch and chunk; from the last pipeline rank back to the first, for each chunk but one."""
    earlier, later = (layout.ranks[rank] for rank in group.ranks)
    if earlier.host == later.host:
        return ()
    stages = layout.mode.chunks - (earlier.pp_rank == layout.candidate.pp - 1)
    size = float(message * layout.microbatches[earlier.dp_rank] * stages)
    return ((0, 1, size),) if group.axis == "pp_forward" else ((1, 0, size),)


def _sync_flows(job: Job, execution: Execution, layout: Layout, group: PlanGroup) -> Flows:
    """Gradients are reduce-scattered and weights gathered: by NCCL around a ring of the members in order.

    Gloo gathers around the same ring, but its reduce-scatter is an all-to-all: every member sends each one of another
    host its part, and gets as much from there.
    """
    n, parameters = len(group.ranks), layout.rank_parameters(job.model, layout.ranks[group.ranks[0]].pp_rank)
    if group.axis == "dp_across":  # what a rank has after its cluster's replicas have added up
        parameters = parameters * n // layout.candidate.dp
    hosts = [layout.ranks[rank].host for rank in group.ranks]
    ring = [(i, (i + 1) % n) for i in range(n) if hosts[i] != hosts[(i + 1) % n]]
    gathered = shard_exchange_bytes(execution.value_bytes * parameters, n)
    if job.device == "cuda":
        reduced = shard_exchange_bytes(GRADIENT_BYTES * parameters, n)
        return [(i, j, gathered + reduced) for i, j in ring]
    members, part = Counter(hosts), GRADIENT_BYTES * parameters / n
    # A member stands for those it sends to: its own interface gets back what they send.
    return [(i, j, gathered) for i, j in ring] + [(i, i, part * (n - members[host])) for i, host in enumerate(hosts)]
