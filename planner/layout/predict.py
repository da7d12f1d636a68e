"""What a step costs on its placement: simulated seconds in parts, memory per rank, bytes on every interface.

The parts come from four simulations that differ in what takes time: compute alone; tensor parallel collectives too;
edges too; everything. compute_s is what the busiest rank computes; bubble_s the rest of the first simulation;
exposed_tp_s, exposed_edge_s and exposed_dp_s what each further one adds; optimizer_s comes last. They add up to step_s.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from operator import mul

from holmes_core.records.job import Job, ScheduleName
from holmes_core.records.plan import InterfaceTraffic, PlanGroup, PlanRank, Prediction
from holmes_runtime.config.model_shape import embedding_parameters, head_parameters, layer_parameters, stage_parameters
from holmes_runtime.config.schedule import make_schedule
from planner.cost.collectives import PassTimes, Path, message_s, shard_exchange_bytes, shard_exchange_s
from planner.cost.compute_time import NO_TIME, optimizer_s, split_factor
from planner.cost.counts import GRADIENT_BYTES, Execution, edge_bytes, memory_bytes, microbatches_in_flight
from planner.cost.slot import Slot, head_parts_s, layer_parts_s
from planner.problem.candidates import Candidate
from planner.problem.problem import Problem
from planner.schedule.precedence import precedence_of
from planner.schedule.simulate import Bucket, Pipeline, PipelineTimes, Span, simulate, timeline
from planner.tolerances import ROUNDING

EDGES = ("pp_forward", "pp_backward")


@dataclass(frozen=True)
class Layout:
    """A placement written out: ranks, their groups, the layers of each stage, and how it is run.

    `microbatches` are by replica.
    """

    candidate: Candidate
    layers: tuple[int, ...]
    ranks: tuple[PlanRank, ...]
    groups: tuple[PlanGroup, ...]
    schedule: ScheduleName
    chunks: int
    extra_in_flight: tuple[int, ...]
    microbatches: tuple[int, ...]

    @property
    def last_stage(self) -> int:
        return len(self.layers) - 1

    @cached_property
    def first_shards(self) -> Mapping[tuple[int, int], PlanRank]:
        """The first shard of each (pipeline rank, replica)."""
        return {(rank.pp_rank, rank.dp_rank): rank for rank in self.ranks if rank.tp_rank == 0}

    @cached_property
    def groups_of_first_shards(self) -> tuple[PlanGroup, ...]:
        """The dp groups and edges of tensor shard 0: the shards of a place share its host, so one stands for all."""
        return tuple(g for g in self.groups if g.axis != "tp" and self.ranks[g.ranks[0]].tp_rank == 0)

    def stages_of(self, pp_rank: int) -> range:
        """The stages a pipeline rank holds."""
        return range(pp_rank, len(self.layers), self.candidate.pp)


def predict(problem: Problem, layout: Layout) -> Prediction:
    """The prediction for `layout`."""
    job, run = problem.job, _Costs(problem, layout)
    whole = run.pipelines()
    without_edges = [replace(pipeline, times=pipeline.times.without_edges()) for pipeline in whole]
    compute_alone = without_edges
    if layout.candidate.tp > 1:
        compute_alone = [
            replace(pipeline, times=pipeline.times.without_edges()) for pipeline in run.pipelines(tensor_parallel=False)
        ]
    alone_s = simulate(compute_alone)
    without_edges_s = simulate(without_edges) if layout.candidate.tp > 1 else alone_s
    without_dp_s = simulate(whole) if layout.candidate.pp > 1 else without_edges_s
    gradients_s = simulate(whole, run.buckets()) if layout.candidate.dp > 1 else without_dp_s
    microbatch_s = tuple(
        tuple(_rank_s(pipeline, layout.stages_of(pp_rank)) for pipeline in compute_alone)
        for pp_rank in range(layout.candidate.pp)
    )
    busiest_s = max(max(map(mul, by_replica, layout.microbatches)) for by_replica in microbatch_s)
    step_s = gradients_s + run.optimizer_s()
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
    run = _Costs(problem, layout)
    return simulate(run.pipelines(), run.buckets()) + run.optimizer_s()


def predict_timeline(problem: Problem, layout: Layout, replica: int = 0) -> tuple[Span, ...]:
    """Every action of one replica's simulated step."""
    run = _Costs(problem, layout)
    how_many = layout.microbatches[replica]
    schedule = make_schedule(layout.schedule, layout.candidate.pp, how_many, layout.chunks, layout.extra_in_flight)
    return timeline(schedule, run.pipelines()[replica].times, run.buckets())


def rank_memory_bytes(job: Job, layout: Layout) -> tuple[int, ...]:
    """Bytes each pipeline rank needs."""
    candidate, last_rank = layout.candidate, layout.last_stage % layout.candidate.pp
    return tuple(
        memory_bytes(
            job.model,
            candidate.execution(job),
            [layout.layers[stage] for stage in layout.stages_of(rank)],
            microbatches_in_flight(
                layout.schedule, candidate.pp, max(layout.microbatches), rank, layout.chunks, layout.extra_in_flight
            ),
            rank == 0,
            rank == last_rank,
        )
        for rank in range(candidate.pp)
    )


def count_traffic(job: Job, layout: Layout) -> tuple[InterfaceTraffic, ...]:
    """Bytes per step on each interface that carries any, sorted by host, interface and network."""
    sent: dict[tuple[str, str, str], float] = defaultdict(float)
    received: dict[tuple[str, str, str], float] = defaultdict(float)
    execution, tp = layout.candidate.execution(job), layout.candidate.tp
    message = edge_bytes(job.model, execution)
    for group in layout.groups_of_first_shards:
        is_sync = group.axis == "dp"
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
    stages = layout.chunks - (earlier.pp_rank == layout.candidate.pp - 1)
    size = float(message * layout.microbatches[earlier.dp_rank] * stages)
    return ((0, 1, size),) if group.axis == "pp_forward" else ((1, 0, size),)


def _sync_flows(job: Job, execution: Execution, layout: Layout, group: PlanGroup) -> Flows:
    """Gradients are reduce-scattered and weights gathered: by NCCL around a ring of the members in order.

    Gloo gathers around the same ring, but its reduce-scatter is an all-to-all: every member sends each one of another
    host its part, and gets as much from there.
    """
    n, parameters = len(group.ranks), _rank_parameters(job, layout, layout.ranks[group.ranks[0]].pp_rank)
    hosts = [layout.ranks[rank].host for rank in group.ranks]
    ring = [(i, (i + 1) % n) for i in range(n) if hosts[i] != hosts[(i + 1) % n]]
    gathered = shard_exchange_bytes(execution.value_bytes * parameters, n)
    if job.device == "cuda":
        reduced = shard_exchange_bytes(GRADIENT_BYTES * parameters, n)
        return [(i, j, gathered + reduced) for i, j in ring]
    members, part = Counter(hosts), GRADIENT_BYTES * parameters / n
    # A member stands for those it sends to: its own interface gets back what they send.
    return [(i, j, gathered) for i, j in ring] + [(i, i, part * (n - members[host])) for i, host in enumerate(hosts)]


def _rank_s(pipeline: Pipeline, stages: Iterable[int]) -> float:
    """What a rank that holds `stages` computes on one micro-batch."""
    return sum(pipeline.times.forward_s[stage] + pipeline.times.backward_s[stage] for stage in stages)


def _rank_parameters(job: Job, layout: Layout, pp_rank: int) -> int:
    """Parameters of one shard of a pipeline rank."""
    stages = layout.stages_of(pp_rank)
    ends = (0 in stages, layout.last_stage in stages)
    return stage_parameters(job.model, sum(layout.layers[stage] for stage in stages), *ends, layout.candidate.tp)


@dataclass(frozen=True)
class _Priced:
    """One kind of slot: seconds of a layer, of its tensor parallel collectives and of the head, a micro-batch each."""

    slot: Slot
    layer: PassTimes
    collectives: PassTimes
    head: PassTimes


class _Costs:
    """The seconds of everything in a placement, each kind of slot priced once."""

    def __init__(self, problem: Problem, layout: Layout) -> None:
        self.job, self.networks, self.layout = problem.job, problem.networks, layout
        self.execution = layout.candidate.execution(problem.job)
        price, hosts = cache(self._price), problem.fleet.hosts
        self.priced = {name: price(hosts[name].hardware.slot) for name in {rank.host for rank in layout.ranks}}
        self.edge_s = self._edges()

    def _price(self, slot: Slot) -> _Priced:
        layer, collectives = layer_parts_s(self.job, self.execution, slot)
        return _Priced(slot, layer, collectives, head_parts_s(self.job, self.execution, slot))

    def at(self, stage: int, replica: int) -> _Priced:
        """The slot that runs the stage."""
        return self.priced[self.layout.first_shards[stage % self.layout.candidate.pp, replica].host]

    def pipelines(self, tensor_parallel: bool = True) -> list[Pipeline]:
        """One for each replica; equal ones share their schedule and times."""
        layout = self.layout
        orders = {
            count: precedence_of(layout.schedule, layout.candidate.pp, count, layout.chunks, layout.extra_in_flight)
            for count in set(layout.microbatches)
        }
        return [
            Pipeline(orders[count], self._times(replica, tensor_parallel))
            for replica, count in enumerate(layout.microbatches)
        ]

    def _times(self, replica: int, tensor_parallel: bool) -> PipelineTimes:
        stages = range(len(self.layout.layers))
        seconds = [self._stage_s(stage, replica, tensor_parallel) for stage in stages]
        forward_edges, backward_edges = (
            tuple(self._edge_s(replica, axis, stage) for stage in stages[:-1]) for axis in EDGES
        )
        return PipelineTimes(
            tuple(stage.forward_s for stage in seconds),
            tuple(stage.backward_s for stage in seconds),
            forward_edges,
            backward_edges,
            self._weight_part(),
            split_factor(self.job),
        )

    def _stage_s(self, stage: int, replica: int, tensor_parallel: bool = True) -> PassTimes:
        priced, count = self.at(stage, replica), self.layout.layers[stage]
        shared = priced.collectives if tensor_parallel else NO_TIME
        head = priced.head if stage == self.layout.last_stage else NO_TIME
        return PassTimes(
            count * (priced.layer.forward_s + shared.forward_s) + head.forward_s,
            count * (priced.layer.backward_s + shared.backward_s) + head.backward_s,
        )

    def _weight_part(self) -> float:
        """Of a backward: half without recomputation, which otherwise comes on top; emulation halves it always."""
        first = self.at(0, 0)
        if first.slot.speed is None or self.execution.recompute == "none":
            return 0.5
        return first.layer.forward_s / first.layer.backward_s

    def _edge_s(self, replica: int, axis: str, stage: int) -> float:
        return self.edge_s.get((replica, axis, stage % self.layout.candidate.pp), 0.0)

    def _edges(self) -> Mapping[tuple[int, str, int], float]:
        """By (replica, axis, earlier pipeline rank), seconds of one message of one shard."""
        layout, size = self.layout, edge_bytes(self.job.model, self.execution)
        seconds: dict[tuple[int, str, int], float] = {}
        for group in layout.groups_of_first_shards:
            if group.axis in EDGES:
                earlier, later = (layout.ranks[rank] for rank in group.ranks)
                path = self._path(group, earlier.host == later.host)
                seconds[earlier.dp_rank, group.axis, earlier.pp_rank] = message_s(size, path)
        return seconds

    def _path(self, group: PlanGroup, one_host: bool) -> Path:
        """What the group has: its share of the network, or what joins the slots of its one host."""
        if one_host:
            return self.priced[self.layout.ranks[group.ranks[0]].host].slot.inside
        assert group.bandwidth_bytes_per_s is not None
        clusters = {self.layout.ranks[rank].cluster for rank in group.ranks}
        return Path(group.bandwidth_bytes_per_s, self.networks.latency_s(clusters))

    def buckets(self) -> list[list[Bucket]]:
        """By stage, its parameters in the order the backward makes gradients: head, layers from the last, embedding.

        None with one replica, which exchanges nothing.
        """
        if self.layout.candidate.dp == 1:
            return []
        synced: dict[int, PlanGroup] = {}
        for group in self.layout.groups_of_first_shards:
            if group.axis == "dp":
                synced[self.layout.ranks[group.ranks[0]].pp_rank] = group
        stages = range(len(self.layout.layers))
        return [self._stage_buckets(stage, synced[stage % self.layout.candidate.pp]) for stage in stages]

    def _stage_buckets(self, stage: int, group: PlanGroup) -> list[Bucket]:
        model, tp = self.job.model, self.layout.candidate.tp
        priced = self.at(stage, 0)
        path, reduce_weight = self._sync_path(group)

        def bucket(backward_s: float, parameters: int) -> Bucket:
            reduce_s = reduce_weight * shard_exchange_s(GRADIENT_BYTES * parameters, len(group.ranks), path)
            gather_s = shard_exchange_s(self.execution.value_bytes * parameters, len(group.ranks), path)
            return Bucket(backward_s, reduce_s, gather_s)

        layer = bucket(priced.layer.backward_s + priced.collectives.backward_s, layer_parameters(model, tp))
        buckets = [layer] * self.layout.layers[stage]
        if stage == self.layout.last_stage:
            buckets.insert(0, bucket(priced.head.backward_s, head_parameters(model, tp)))
        if stage == 0:
            buckets.append(bucket(0.0, embedding_parameters(model, tp)))
        return buckets

    def _sync_path(self, group: PlanGroup) -> tuple[Path, float]:
        """What a dp group has, and how much more than a ring's bytes its reduce-scatter sends out of a host."""
        members = Counter(self.layout.ranks[rank].host for rank in group.ranks)
        if len(members) == 1:
            return self._path(group, True), 1.0
        n = len(group.ranks)
        out_of_host = max(count * (n - count) for count in members.values()) / (n - 1)
        return self._path(group, False), 1.0 if self.job.device == "cuda" else out_of_host

    def optimizer_s(self) -> float:
        """Seconds of the slowest rank's update."""
        layout = self.layout
        parameters = [_rank_parameters(self.job, layout, rank) for rank in range(layout.candidate.pp)]
        kinds = {(pp_rank, id(self.priced[rank.host])): rank for (pp_rank, _), rank in layout.first_shards.items()}
        speeds = [(pp_rank, self.priced[rank.host].slot.speed) for (pp_rank, _), rank in kinds.items()]
        return max(optimizer_s(parameters[rank], self.execution, speed) if speed else 0.0 for rank, speed in speeds)
