"""The seconds of everything in a layout: stages, edges, gradient buckets and the optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from holmes_core.records.plan import PlanGroup
from holmes_runtime.config.model_shape import Part, gradient_order
from planner.cost.collectives import PassTimes, Path, message_s, shard_exchange_s
from planner.cost.compute_time import NO_TIME, optimizer_s, split_factor
from planner.cost.counts import GRADIENT_BYTES, edge_bytes
from planner.cost.slot import Slot, head_parts_s, layer_parts_s
from planner.layout.layout import Layout
from planner.problem.problem import Problem
from planner.schedule.buckets import Bucket, make_buckets
from planner.schedule.precedence import precedence_of
from planner.schedule.simulate import Pipeline, PipelineTimes

EDGES = ("pp_forward", "pp_backward")


@dataclass(frozen=True)
class SlotCosts:
    """One kind of slot: seconds of a layer, of its tensor parallel collectives and of the head, a micro-batch each."""

    slot: Slot
    layer: PassTimes
    collectives: PassTimes
    head: PassTimes


class LayoutCosts:
    """The seconds of everything in a placement, each kind of slot priced once."""

    def __init__(self, problem: Problem, layout: Layout) -> None:
        self.job, self.networks, self.layout = problem.job, problem.networks, layout
        self.execution = layout.candidate.execution(problem.job)
        price, hosts = cache(self._price), problem.fleet.hosts
        self.priced = {name: price(hosts[name].hardware.slot) for name in {rank.host for rank in layout.ranks}}
        self.edge_s = self._edges()

    def _price(self, slot: Slot) -> SlotCosts:
        layer, collectives = layer_parts_s(self.job, self.execution, slot)
        return SlotCosts(slot, layer, collectives, head_parts_s(self.job, self.execution, slot))

    def at(self, stage: int, replica: int) -> SlotCosts:
        """The slot that runs the stage."""
        return self.priced[self.layout.first_shards[stage % self.layout.candidate.pp, replica].host]

    def pipelines(self, tensor_parallel: bool = True) -> list[Pipeline]:
        """One for each replica; equal ones share their schedule and times."""
        layout, mode = self.layout, self.layout.mode
        orders = {
            count: precedence_of(mode.schedule, layout.candidate.pp, count, mode.chunks, mode.extra_in_flight)
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
        """By stage, its gradient buckets; none with one replica, which exchanges nothing."""
        if self.layout.candidate.dp == 1:
            return []
        synced: dict[int, PlanGroup] = {}
        for group in self.layout.groups_of_first_shards:
            if group.axis == "dp":
                synced[self.layout.ranks[group.ranks[0]].pp_rank] = group
        stages = range(len(self.layout.layers))
        return [self._stage_buckets(stage, synced[stage % self.layout.candidate.pp]) for stage in stages]

    def _stage_buckets(self, stage: int, group: PlanGroup) -> list[Bucket]:
        priced, last = self.at(stage, 0), self.layout.last_stage
        path, reduce_weight = self._sync_path(group)

        def exchange_s(parameters: int) -> tuple[float, float]:
            reduce_s = reduce_weight * shard_exchange_s(GRADIENT_BYTES * parameters, len(group.ranks), path)
            return reduce_s, shard_exchange_s(self.execution.value_bytes * parameters, len(group.ranks), path)

        backward_s: dict[Part, float] = {
            "head": priced.head.backward_s,
            "layer": priced.layer.backward_s + priced.collectives.backward_s,
        }
        parts = gradient_order(self.layout.layers[stage], stage == 0, stage == last)
        return make_buckets(self.job.model, self.layout.candidate.tp, parts, backward_s, exchange_s)

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
        parameters = [layout.rank_parameters(self.job.model, rank) for rank in range(layout.candidate.pp)]
        kinds = {(pp_rank, id(self.priced[rank.host])): rank for (pp_rank, _), rank in layout.first_shards.items()}
        speeds = [(pp_rank, self.priced[rank.host].slot.speed) for (pp_rank, _), rank in kinds.items()]
        return max(optimizer_s(parameters[rank], self.execution, speed) if speed else 0.0 for rank, speed in speeds)
