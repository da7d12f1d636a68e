"""The seconds of everything in a layout: stages, edges, gradient buckets and the optimizer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import permutations
from typing import NamedTuple

from holmes_core.records.job import Codec, Device
from holmes_core.records.plan import PlanGroup
from holmes_runtime.config.model_shape import Part, bucket_bytes, gradient_order, head_parameters, layer_parameters
from holmes_runtime.config.rank_grid import EDGE_AXES
from planner.cost.collectives import PassTimes, Path, exchange_hops, exchange_share, shard_exchange_bytes
from planner.cost.compute_time import NO_TIME, split_factor
from planner.cost.counts import edge_bytes, edge_values, tied_bytes
from planner.cost.engines import engine_of
from planner.cost.packing import with_messages
from planner.cost.slot import Slot, head_parts_s, layer_parts_s, update_s
from planner.layout.layout import Layout
from planner.problem.fleet import Fleet
from planner.problem.problem import Problem
from planner.problem.sharded_weights import WeightTraffic
from planner.problem.shared_cores import machine_of
from planner.schedule.buckets import WHOLE, BucketExchange, BucketSeconds, make_buckets
from planner.schedule.simulate import PipelineTimes, ReplicaSchedule, ScheduleOrder


@dataclass(frozen=True)
class SlotCosts:
    """One kind of slot: seconds of a layer, of its tensor parallel collectives and of the head, a micro-batch each."""

    slot: Slot
    layer: PassTimes
    collectives: PassTimes
    head: PassTimes


class EdgeCosts(NamedTuple):
    """One message over an edge: seconds for which it keeps the link busy, and is then under way; how it is packed."""

    busy_s: float
    latency_s: float
    codec: Codec


class LevelCosts(NamedTuple):
    """Replicas that exchange gradients and weights: their number, and their group's share of its network.

    `reduce_bytes_per_s` is in terms of the bytes that a ring would send.
    """

    size: int
    reduce_bytes_per_s: float
    gather_bytes_per_s: float
    latency_s: float

    def exchange_s(
        self, parameters: float, travels_bytes: tuple[int, int], device: Device
    ) -> tuple[float, float, float]:
        """Return the seconds of a reduce-scatter, an all-gather, and until the last byte arrives, for `parameters`.

        `travels_bytes` are the bytes of a parameter, reduced and gathered.
        """
        (reduced, gathered), hops = travels_bytes, exchange_hops(self.size, device)
        reduced_s = shard_exchange_bytes(reduced * parameters, self.size) / self.reduce_bytes_per_s
        gathered_s = shard_exchange_bytes(gathered * parameters, self.size) / self.gather_bytes_per_s
        reduce_s, gather_s = reduced_s + hops.reduce * self.latency_s, gathered_s + hops.gather * self.latency_s
        return reduce_s, gather_s, hops.late * self.latency_s


NO_EDGE = EdgeCosts(0.0, 0.0, "none")


class LayoutCosts:
    """The seconds of everything in a placement, each kind of slot priced once."""

    def __init__(self, problem: Problem, layout: Layout) -> None:
        self.job, self.networks, self.layout = problem.job, problem.networks, layout
        self._inventory = problem.inventory
        self.execution, self._engine = layout.candidate.execution(problem.job), engine_of(problem.job)
        self._travels_bytes = self._engine.travels_bytes(self.execution.value_bytes)
        price, slots = cache(self._price), self._slots(problem.fleet)
        self.priced = {name: price(slot) for name, slot in slots.items()}
        self.edges = self._edges()

    def _slots(self, fleet: Fleet) -> dict[str, Slot]:
        """Return, by host of the layout, its slots while all its ranks compute."""
        slots = {name: fleet.hosts[name].hardware.slot for name in {rank.host for rank in self.layout.ranks}}
        if not fleet.shares_cores:
            return slots
        machines = {host.name: machine_of(host) for host in self._inventory.hosts if host.name in slots}
        on_machine = Counter(machines[rank.host] for rank in self.layout.ranks)
        return {name: slot.among(on_machine[machines[name]]) for name, slot in slots.items()}

    def _price(self, slot: Slot) -> SlotCosts:
        layer, collectives = layer_parts_s(self.job, self.execution, slot)
        return SlotCosts(slot, layer, collectives, head_parts_s(self.job, self.execution, slot))

    @cached_property
    def most_faster(self) -> float:
        """The speed-up of a rank's compute while all others wait and leave it their cores.

        1 where ranks are on several machines: the simulation does not follow who computes at once there.
        """
        hosts = [host for host in self._inventory.hosts if host.name in self.priced]
        if len(set(map(machine_of, hosts))) > 1:
            return 1.0
        return self.priced[hosts[0].name].slot.threads_per_core

    def at(self, stage: int, replica: int) -> SlotCosts:
        """Return the slot that runs the stage."""
        return self.priced[self.layout.first_shards[stage % self.layout.candidate.pp, replica].host]

    def pipelines(
        self, tensor_parallel: bool = True, edges: bool = True, weights: bool = True
    ) -> list[ReplicaSchedule]:
        """Return one pipeline for each replica; a part that is left out takes no time.

        `weights`: the traffic of weights and gradients in every micro-batch, under ZeRO-3.
        """
        layout, mode = self.layout, self.layout.mode
        return [
            ReplicaSchedule(
                ScheduleOrder(mode.schedule, layout.candidate.pp, count, mode.chunks, mode.extra_in_flight),
                self._times(replica, tensor_parallel, edges, weights),
            )
            for replica, count in enumerate(layout.microbatches)
        ]

    def _times(self, replica: int, tensor_parallel: bool, edges: bool, weights: bool) -> PipelineTimes:
        stages = range(len(self.layout.layers))
        seconds = [self._stage_s(stage, replica, tensor_parallel, weights) for stage in stages]
        forward, backward = ([self._edge(replica, axis, stage) for stage in stages[:-1]] for axis in EDGE_AXES)
        codecs = [(there.codec, back.codec) for there, back in zip(forward, backward, strict=True)]
        values = edge_values(self.job.model, self.execution)
        has_edges = edges and self.layout.candidate.pp > 1
        action_s = [self.at(stage, replica).slot.action_s * has_edges for stage in stages]
        times = PipelineTimes(
            *with_messages(self.job, values, seconds, codecs if edges else (), action_s),
            tuple(edge.busy_s for edge in forward),
            tuple(edge.busy_s for edge in backward),
            self._weight_part(),
            split_factor(self.job),
            tuple(edge.latency_s for edge in forward),
        )
        return times if edges else times.without_edges()

    def _stage_s(self, stage: int, replica: int, tensor_parallel: bool, weights: bool) -> tuple[float, float]:
        """Forward and backward of one micro-batch."""
        priced, count = self.at(stage, replica), self.layout.layers[stage]
        shared = priced.collectives if tensor_parallel else NO_TIME
        head = priced.head if stage == self.layout.last_stage else NO_TIME
        layer = PassTimes(priced.layer.forward_s + shared.forward_s, priced.layer.backward_s + shared.backward_s)
        if weights and self.layout.candidate.weight_shards > 1:
            traffic, of_head = self._weight_traffic(stage % self.layout.candidate.pp)
            layer = traffic.under(layer)
            head = of_head.under(head) if stage == self.layout.last_stage else head
        return count * layer.forward_s + head.forward_s, count * layer.backward_s + head.backward_s

    def _weight_traffic(self, pp_rank: int) -> tuple[WeightTraffic, WeightTraffic]:
        """Return the traffic of a layer and of the head on one tensor shard, among replicas that share the weights."""
        inside, tp = self._levels[pp_rank][0], self.layout.candidate.tp
        found = []
        for count in (layer_parameters, head_parameters):
            parameters = count(self.job.model, tp)
            reduce_s, gather_s, late_s = inside.exchange_s(parameters, self._travels_bytes, self.job.device)
            found.append(WeightTraffic(gather_s + late_s, reduce_s + late_s))
        return found[0], found[1]

    def _weight_part(self) -> float:
        """Return the weight gradients' part of a backward.

        Half without recomputation, which otherwise comes on top; emulation halves it always.
        """
        first = self.at(0, 0)
        if first.slot.speed is None or self.execution.recompute == "none":
            return 0.5
        return first.layer.forward_s / first.layer.backward_s

    def _edge(self, replica: int, axis: str, stage: int) -> EdgeCosts:
        return self.edges.get((replica, axis, stage % self.layout.candidate.pp), NO_EDGE)

    def _edges(self) -> Mapping[tuple[int, str, int], EdgeCosts]:
        """Return, by (replica, axis, earlier pipeline rank), what one message of one shard takes."""
        layout, found = self.layout, dict[tuple[int, str, int], EdgeCosts]()
        for group in layout.groups_of_first_shards:
            if group.axis in EDGE_AXES:
                earlier, later = (layout.ranks[rank] for rank in group.ranks)
                one_host, codec = earlier.host == later.host, layout.codec_of(group)
                path, share = self._path(group, one_host), 1.0 if one_host else self._engine.edge_share
                busy_s = edge_bytes(self.job.model, self.execution, codec) / path.bandwidth_bytes_per_s / share
                found[earlier.dp_rank, group.axis, earlier.pp_rank] = EdgeCosts(busy_s, path.latency_s, codec)
        return found

    def _path(self, group: PlanGroup, one_host: bool) -> Path:
        """Return the group's path: its share of the network, or the links between the slots of its one host."""
        if one_host:
            return self.priced[self.layout.ranks[group.ranks[0]].host].slot.inside
        assert group.rate_bytes_per_s is not None
        return Path(group.rate_bytes_per_s, group.latency_s)

    def norm_s(self) -> tuple[float, float]:
        """Seconds the norm's sum over all ranks is under way: down pipelines and back up, and around replicas."""
        last = self.layout.candidate.pp - 1
        pipelines_s: defaultdict[int, float] = defaultdict(float)
        for (replica, axis, earlier), edge in self.edges.items():
            pipelines_s[replica] += edge.latency_s if earlier < last and axis == EDGE_AXES[0] else 0.0
        around_s = [sum((level.size - 1) * level.latency_s for level in levels) for levels in self._levels]
        return 2 * max(pipelines_s.values(), default=0.0), 2 * max(around_s, default=0.0)

    def tied_s(self) -> float:
        """Seconds of the sums over copies of a tied table; nothing hides them, as they follow the last gradients."""
        size = tied_bytes(self.job.model, self.execution)
        seconds = [0.0]
        for group in self.layout.groups_of_first_shards:
            if group.axis == "tied":
                one_host = len({self.layout.ranks[rank].host for rank in group.ranks}) == 1
                path = self._path(group, one_host)
                seconds.append(size / path.bandwidth_bytes_per_s + path.latency_s)
        return max(seconds)

    @property
    def _dp(self) -> int:
        return self.layout.candidate.dp

    @cached_property
    def _levels(self) -> list[list[LevelCosts]]:
        """By pipeline rank, the levels in which its replicas exchange: all at once, or inside clusters and across."""
        found: list[dict[str, list[PlanGroup]]] = [{} for _ in range(self.layout.candidate.pp)]
        for group in self.layout.groups_of_first_shards:
            if group.axis in ("dp", "dp_across"):
                found[self.layout.ranks[group.ranks[0]].pp_rank].setdefault(group.axis, []).append(group)
        return [[self._level(groups) for groups in levels.values()] for levels in found]

    def _level(self, groups: Sequence[PlanGroup]) -> LevelCosts:
        """Return the slowest of groups alike."""
        priced = [self._group_costs(group) for group in groups]
        return LevelCosts(
            priced[0].size,
            min(each.reduce_bytes_per_s for each in priced),
            min(each.gather_bytes_per_s for each in priced),
            max(each.latency_s for each in priced),
        )

    def _group_costs(self, group: PlanGroup) -> LevelCosts:
        one_host = len({self.layout.ranks[rank].host for rank in group.ranks}) == 1
        path = self._path(group, one_host)
        n, reduced = len(group.ranks), path.bandwidth_bytes_per_s if one_host else self._reduce_bytes_per_s(group)
        share = 1.0 if one_host else exchange_share(n, self.job.device) * self._engine.exchange_share
        return LevelCosts(n, share * reduced, share * path.bandwidth_bytes_per_s, path.latency_s)

    def buckets(self) -> list[list[BucketSeconds]]:
        """Return, by stage, its gradient buckets; none with one replica, which exchanges nothing."""
        if self._dp == 1:
            return []
        stages = range(len(self.layout.layers))
        return [self._stage_buckets(stage, self._levels[stage % self.layout.candidate.pp]) for stage in stages]

    def _stage_buckets(self, stage: int, levels: Sequence[LevelCosts]) -> list[BucketSeconds]:
        priced, last = self.at(stage, 0), self.layout.last_stage
        device, engine = self.job.device, self._engine

        def exchange(parameters: int) -> BucketExchange:
            (reduce_s, gather_s, late_s), *across = (
                level.exchange_s(parameters / share, self._travels_bytes, device)
                for level, share in zip(levels, (1, levels[0].size), strict=False)
            )
            across_reduce_s, across_gather_s, across_late_s = across[0] if across else (0.0, 0.0, 0.0)
            found = BucketExchange(reduce_s, gather_s, late_s + across_late_s, across_reduce_s, across_gather_s)
            return found if engine.gathers_first else found.all_reduced()

        backward_s: dict[Part, float] = {
            "head": priced.head.backward_s,
            "layer": priced.layer.backward_s + priced.collectives.backward_s,
        }
        parts = gradient_order(self.layout.layers[stage], stage == 0, stage == last)
        full_bytes = 0 if engine.overlaps_exchange else WHOLE  # sharded by layer
        if engine.overlaps_exchange and self.layout.candidate.weight_shards == 1:
            full_bytes = bucket_bytes(self.layout.rank_parameters(self.job.model, stage % self.layout.candidate.pp))
        return make_buckets(self.job.model, self.layout.candidate.tp, parts, backward_s, exchange, full_bytes)

    def _reduce_bytes_per_s(self, group: PlanGroup) -> float:
        """Return the rate of a reduce-scatter over several hosts, in terms of the bytes that a ring would send.

        Gloo's is an exchange of all with all: more bytes leave a host, and a cluster, than in a ring.
        """
        assert group.rate_bytes_per_s is not None
        if self.job.device == "cuda":
            return group.rate_bytes_per_s
        n, ranks = len(group.ranks), [self.layout.ranks[rank] for rank in group.ranks]
        members = Counter(rank.host for rank in ranks)
        rates = []
        if group.bandwidth_bytes_per_s is not None:
            out_of_host = max(count * (n - count) for count in members.values())
            rates.append(group.bandwidth_bytes_per_s * (n - 1) / out_of_host)
        if group.trunk_bytes_per_s is not None:
            clusters = [rank.cluster for rank in ranks]
            held, hops = Counter(clusters), Counter(zip(clusters, (*clusters[1:], clusters[0]), strict=True))
            crossing = max(held[a] * held[b] / max(1, hops[a, b]) for a, b in permutations(held, 2))
            rates.append(group.trunk_bytes_per_s * (n - 1) / crossing)
        return min(rates)

    def optimizer_s(self) -> float:
        """Return the seconds of the slowest rank's update."""
        layout = self.layout
        parameters = [layout.rank_parameters(self.job.model, rank) for rank in range(layout.candidate.pp)]
        kinds = {(pp_rank, id(self.priced[rank.host])): rank for (pp_rank, _), rank in layout.first_shards.items()}
        slots = [(pp_rank, self.priced[rank.host].slot) for (pp_rank, _), rank in kinds.items()]
        return max(update_s(parameters[rank], self.execution, slot) for rank, slot in slots)
