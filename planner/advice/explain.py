"""A plan's meaning in figures for a screen or a page: equal hosts, memory, load of NICs, the bottleneck.

Everything here is read from the plan and the inventory. Nothing is solved or simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan, PlanRank, Prediction
from holmes_core.units import format_rate, format_seconds
from holmes_runtime.config.rank_grid import EDGE_AXES
from planner.problem.networks import Networks, shared_network

NAMED_HOSTS = 16  # up to this number, every host has a line of its own
PartKind = Literal["compute", "tp", "experts", "sequences", "bubble", "edges", "gradients", "optimizer"]
PART_NAMES: dict[PartKind, str] = {
    "compute": "compute",
    "tp": "tensor parallel",
    "experts": "tensor and expert parallel",
    "sequences": "inside layers",
    "bubble": "pipeline bubble",
    "edges": "waiting for edges",
    "gradients": "waiting for gradients",
    "optimizer": "optimizer",
}


@dataclass(frozen=True)
class HostBlock:
    """Neighbouring hosts of a cluster whose slots hold the same stages and shards, each for its own replicas."""

    cluster: str
    hosts: tuple[str, ...]
    ranks: tuple[PlanRank, ...]


@dataclass(frozen=True)
class StepShare:
    """The seconds that one part of the step takes on the critical path."""

    kind: PartKind
    seconds: float

    @property
    def name(self) -> str:
        """The label on screens and pages."""
        return PART_NAMES[self.kind]


@dataclass(frozen=True)
class StageMemory:
    """The bytes that a pipeline rank needs, and the memory of the smallest GPU among its ranks (None: not known)."""

    pp_rank: int
    needed_bytes: int
    available_bytes: int | None

    @property
    def fullness(self) -> float:
        """The needed part of the memory; if that is not known, the needed bytes, so that larger needs are fuller."""
        return self.needed_bytes / (self.available_bytes or 1)


@dataclass(frozen=True)
class NicLoad:
    """The bytes that one interface carries per step on one network, each way, and its rate (None: not known)."""

    cluster: str
    host: str
    netdev: str
    network: str
    sent_bytes: int
    received_bytes: int
    bandwidth_bytes_per_s: float | None

    @property
    def busy_s(self) -> float | None:
        """Seconds of the busier direction."""
        if self.bandwidth_bytes_per_s is None:
            return None
        return max(self.sent_bytes, self.received_bytes) / self.bandwidth_bytes_per_s


def step_parts(prediction: Prediction, job: Job | None = None) -> tuple[StepShare, ...]:
    """Return the parts of a step in display order; they add up to `step_s`."""
    inside: PartKind = "tp"
    if job is not None and job.ep > 1:
        inside = "experts"
    if job is not None and job.cp > 1:
        inside = "sequences"
    return (
        StepShare("compute", prediction.compute_s),
        StepShare(inside, prediction.exposed_tp_s),
        StepShare("bubble", prediction.bubble_s),
        StepShare("edges", prediction.exposed_edge_s),
        StepShare("gradients", prediction.exposed_dp_s),
        StepShare("optimizer", prediction.optimizer_s),
    )


def host_blocks(plan: Plan, named_hosts: int = NAMED_HOSTS) -> tuple[HostBlock, ...]:
    """Return the hosts cluster by cluster, folded if the plan has more than `named_hosts` of them."""
    ranks_of: dict[str, list[PlanRank]] = {node.host: [] for node in plan.nodes}
    for rank in plan.ranks:
        ranks_of[rank.host].append(rank)
    fold = len(plan.nodes) > named_hosts
    blocks = []
    for cluster in dict.fromkeys(node.cluster for node in plan.nodes):
        hosts = [node.host for node in plan.nodes if node.cluster == cluster]
        alike = groupby(hosts, key=lambda host: _slots(ranks_of[host]) if fold else host)
        for _, names in alike:
            members = tuple(names)
            blocks.append(HostBlock(cluster, members, tuple(rank for host in members for rank in ranks_of[host])))
    return tuple(blocks)


def _slots(ranks: Sequence[PlanRank]) -> tuple[tuple[int, int], ...]:
    return tuple((rank.pp_rank, rank.tp_rank) for rank in ranks)


def tasklets(plan: Plan, ranks: Sequence[PlanRank]) -> str:
    """Return a description of the tasklets of `ranks`: `stage 0, replicas 0-7, shards 0-3`."""
    held: dict[int, tuple[set[int], set[int]]] = {}
    for rank in ranks:
        replicas, shards = held.setdefault(rank.pp_rank, (set(), set()))
        replicas.add(rank.dp_rank)
        shards.add(rank.tp_rank)
    words = []
    for (replicas, shards), pp_ranks in groupby(held, key=lambda pp_rank: held[pp_rank]):
        stages = [stage for pp_rank in pp_ranks for stage in range(pp_rank, plan.pp * plan.chunks, plan.pp)]
        named = [("stage", stages), ("replica", replicas)] + ([("shard", shards)] if plan.tp > 1 else [])
        words.append(", ".join(counted(noun, numbers) for noun, numbers in named))
    return "; ".join(words)


def counted(noun: str, numbers: Iterable[int]) -> str:
    """Return `layer 3` or `layers 0-3, 8`."""
    listed = sorted(set(numbers))
    return f"{noun}{'s' if len(listed) > 1 else ''} {ranges(listed)}"


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending whole numbers in short form: `0-3, 8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(str(end) for end in run) for run in runs)


def stage_memories(inventory: Inventory, plan: Plan) -> tuple[StageMemory, ...]:
    """Return the needed and available memory of each pipeline rank."""
    sizes = {(host.name, gpu.index): gpu.memory_bytes for host in inventory.hosts for gpu in host.gpus}
    room: dict[int, int] = {}
    for rank in plan.ranks:
        size = sizes.get((rank.host, rank.gpu)) if rank.gpu is not None else None
        if size is not None:
            room[rank.pp_rank] = min(size, room.get(rank.pp_rank, size))
    return tuple(
        StageMemory(pp_rank, needed, room.get(pp_rank)) for pp_rank, needed in enumerate(plan.prediction.memory_bytes)
    )


def nic_loads(inventory: Inventory, plan: Plan) -> tuple[NicLoad, ...]:
    """Return the load of every interface that carries any, in the plan's order."""
    cluster_of = {node.host: node.cluster for node in plan.nodes}
    rdma = {group.network for group in plan.groups if group.net_name not in (None, "Socket")}
    rates: dict[tuple[str, str], float | None] = {}
    networks = Networks(inventory, plan.job)
    for network in (*(cluster.fabric for cluster in inventory.clusters), shared_network(inventory)):
        for port in network.ports:
            plain, fast = networks.as_measured(port, network.name), port.rdma_bandwidth_bytes_per_s
            nics = fast if network.name in rdma else plain
            nvlink = networks.nvlink_bytes_per_s(port.host) if network.name == cluster_of.get(port.host) else None
            rates[port.host, network.name] = nvlink or nics
    return tuple(
        NicLoad(
            cluster=cluster_of[seen.host],
            host=seen.host,
            netdev=seen.netdev,
            network=seen.network,
            sent_bytes=seen.sent_bytes,
            received_bytes=seen.received_bytes,
            bandwidth_bytes_per_s=rates.get((seen.host, seen.network)),
        )
        for seen in plan.prediction.traffic
    )


def bottleneck(plan: Plan) -> str:
    """Return the bottleneck of the step in one sentence."""
    guess = plan.prediction
    if not guess.step_s:
        return "Nothing takes time in this step."
    parts = step_parts(guess, plan.job)
    compute, largest = parts[0], max(parts[1:], key=lambda part: part.seconds)
    share = f"{compute.seconds / guess.step_s:.0%}"
    if largest.seconds < 0.01 * guess.step_s:
        return f"Compute is the bottleneck: it takes {share} of the step, and everything else takes less than 1 % each."
    why = _reason(plan, largest.kind)
    lost = f"{largest.name}, {format_seconds(largest.seconds)} ({largest.seconds / guess.step_s:.0%})"
    if largest.seconds > compute.seconds:
        return f"The bottleneck is {lost}: {why}."
    return f"Compute takes {share} of the step; most of the rest is {lost}: {why}."


def _reason(plan: Plan, kind: PartKind) -> str:
    """Return the reason for the seconds of a part other than compute."""
    if kind == "edges":
        return _slowest(plan, EDGE_AXES, "activations and their gradients pass")
    if kind == "gradients":
        return _slowest(plan, ("dp", "dp_across", "tied"), "gradients pass")
    if kind == "tp":
        return f"groups of {plan.tp} exchange activations inside their hosts"
    if kind == "experts":
        sizes = f" (ep {plan.job.parallel.ep or 1}, etp {plan.job.etp})" if plan.job.etp > 1 else ""
        return f"groups of {plan.job.ep}{sizes} send tokens to their experts and back"
    if kind == "sequences":
        others = f", {plan.tp} tensor shards their activations" if plan.tp > 1 else ""
        others += f", {plan.job.ep} ranks tokens for their experts" if plan.job.ep > 1 else ""
        return f"groups of {plan.job.cp} exchange keys and values of their sequences{others}"
    if kind == "optimizer":
        return "every rank updates its part of the weights"
    uneven = ", with uneven stages" if len({stage.num_layers for stage in plan.stages}) > 1 else ""
    least = min(plan.microbatches)
    batches = f"{least} micro-batches" if least > 1 else "a single micro-batch"
    return f"{plan.pp} pipeline ranks fill and drain around {batches}{uneven}"


def _slowest(plan: Plan, axes: tuple[str, ...], what: str) -> str:
    """Return a description of the group of `axes` between hosts with the least bandwidth."""
    crossing = [
        group for group, leaves in zip(plan.groups, leave_hosts(plan), strict=True) if leaves and group.axis in axes
    ]
    if not crossing:
        return f"{what} inside hosts"
    group = min(crossing, key=lambda group: (group.rate_bytes_per_s or 0.0, group.name))
    first = plan.ranks[group.ranks[0]]
    rate = format_rate(group.rate_bytes_per_s)
    return f"{what} through {group.interfaces[0]} of {first.host} (network {group.network}) at {rate} per group"


def shares_sentence(plan: Plan) -> tuple[str, ...]:
    """Return a sentence about the micro-batches of each replica, if they differ."""
    held: dict[int, list[int]] = {}
    for replica, number in enumerate(plan.microbatches):
        held.setdefault(number, []).append(replica)
    if len(held) == 1:
        return ()
    parts = [
        f"{counted('replica', replicas)} {'run' if len(replicas) > 1 else 'runs'} {number}"
        for number, replicas in sorted(held.items(), reverse=True)
    ]
    said = f"{', '.join(parts[:-1])} and {parts[-1]} micro-batches per step"
    return (f"{said[0].upper()}{said[1:]}; the gradient is the mean over all of them.",)


def leave_hosts(plan: Plan) -> list[bool]:
    """Return, by group, True if its members are on several hosts, so that a network carries its traffic."""
    hosts = [rank.host for rank in plan.ranks]
    return [any(hosts[rank] != hosts[group.ranks[0]] for rank in group.ranks) for group in plan.groups]
