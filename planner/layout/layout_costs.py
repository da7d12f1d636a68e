"""The seconds of everything in a layout: stages, edges and their ports, gradient buckets and the optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import permutations
from typing import NamedTuple

from holmes_core.records.plan import PlanGroup
from holmes_runtime.config.codec import Device
from holmes_runtime.config.rank_grid import EDGE_AXES
from planner.cost.collectives import Path, exchange_share, shard_exchange_bytes
from planner.cost.counts import edge_bytes, tied_bytes
from planner.cost.engines import engine_of
from planner.cost.slot import Slot, dense_parts_s, layer_parts_s
from planner.cost.trained import ParameterCount, backward_share, head_of, layers_of
from planner.layout.layout import Layout
from planner.problem.coefficients import APART, slot_s
from planner.problem.fleet import Fleet
from planner.problem.networks import Networks
from planner.problem.problem import Problem
from planner.problem.sharded_weights import WeightTraffic, exposed_part
from planner.problem.shared_cores import machine_of
from planner.schedule.buckets import BucketExchange, BucketSeconds, exchange_among
from planner.schedule.shared_core_runs import simulate_sharing
from planner.schedule.simulate import ReplicaSchedule
from planner.schedule.step_seconds import (
    RankSeconds,
    ReplicaSeconds,
    gradient_buckets,
    in_two_levels,
    slowest_update_s,
    with_experts,
)
from planner.search.closed_form import NO_EDGE, Edge, PortName


@dataclass(frozen=True, eq=False)
class SlotCosts:
    """One kind of slot: the seconds of a micro-batch, with and without tensor parallel collectives.

    Compared by identity, since each kind is priced once.
    """

    slot: Slot
    whole: RankSeconds
    without_collectives: RankSeconds


class LevelCosts(NamedTuple):
    """Replicas that exchange gradients and weights: their number, and their group's share of its network.

    `reduce_bytes_per_s` counts the bytes that a ring would send.
    """

    size: int
    reduce_bytes_per_s: float
    gather_bytes_per_s: float
    latency_s: float
    device: Device

    def exchange_s(self, parameters: float, travels_bytes: tuple[int, int]) -> BucketExchange:
        """Return the exchange of `parameters`; `travels_bytes` are the bytes of each, reduced and gathered."""
        reduced, gathered = (shard_exchange_bytes(size * parameters, self.size) for size in travels_bytes)
        reduced_s, gathered_s = reduced / self.reduce_bytes_per_s, gathered / self.gather_bytes_per_s
        return exchange_among(self.size, self.device, reduced_s, gathered_s, self.latency_s)


class LayoutCosts:
    """The seconds of everything in a placement. Each kind of slot is priced once."""

    def __init__(self, problem: Problem, layout: Layout) -> None:
        self.job, self.layout, self._pp_ranks = problem.job, layout, range(layout.candidate.pp)
        self._inventory, self._networks = problem.inventory, problem.networks
        self.execution, self._engine = layout.candidate.execution(problem.job), engine_of(problem.job)
        self._travels_bytes = self._engine.travels_bytes(self.execution.value_bytes)
        self._across_bytes = self._engine.across_bytes(
            self.execution.value_bytes, layout.candidate.pp, max(layout.microbatches)
        )
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
        layer, head = slot_s(self.job, slot, self.execution)
        alone, _ = layer_parts_s(self.job, self.execution, slot)
        whole, without = RankSeconds(layer, head, slot.action_s), RankSeconds(alone, head, slot.action_s)
        if self.job.model.experts is not None:
            dense = dense_parts_s(self.job, self.execution, slot) if self.job.model.first_dense_layers else None
            kinds = ((whole, dense and dense[0] + dense[1]), (without, dense and dense[0]))
            whole, without = (with_experts(each, self.job, self.execution, slot, layer) for each, layer in kinds)
        return SlotCosts(slot, whole, without)

    @cached_property
    def most_faster(self) -> float:
        """The speed-up of a rank's compute while all others wait and leave it their cores.

        1 if ranks are on several machines: the simulation does not track which of them compute at the same time.
        """
        hosts = [host for host in self._inventory.hosts if host.name in self.priced]
        if len(set(map(machine_of, hosts))) > 1:
            return 1.0
        return self.priced[hosts[0].name].slot.threads_per_core

    def pipelines(
        self, tensor_parallel: bool = True, edges: bool = True, weights: bool = True
    ) -> list[ReplicaSchedule]:
        """Return one pipeline for each replica. Parts that are left out take no time.

        `weights`: the traffic of weights and gradients in every micro-batch, under ZeRO-3.
        """
        layout = self.layout
        replicas = (self._replica(replica, tensor_parallel, weights) for replica in range(layout.candidate.dp))
        return [
            ReplicaSchedule(
                layout.mode.order(layout.candidate.pp, count),
                replica.times(self.job, self.execution, layout.layers, edges),
            )
            for count, replica in zip(layout.microbatches, replicas, strict=True)
        ]

    def _replica(self, replica: int, tensor_parallel: bool, weights: bool) -> ReplicaSeconds:
        ranks = [self._rank(rank, replica, tensor_parallel, weights) for rank in self._pp_ranks]
        forward, backward = (
            [self.edges.get((replica, axis, rank), NO_EDGE) for rank in self._pp_ranks] for axis in EDGE_AXES
        )
        return ReplicaSeconds(ranks, forward, backward, self._weight_part)

    def _rank(self, pp_rank: int, replica: int, tensor_parallel: bool = True, weights: bool = False) -> RankSeconds:
        """Return the seconds of one micro-batch on the pipeline rank of a replica."""
        priced = self._priced_at(pp_rank, replica)
        seconds = priced.whole if tensor_parallel else priced.without_collectives
        if not weights or self.layout.candidate.weight_shards == 1:
            return seconds
        layer, head = self._weight_traffic[pp_rank]
        return seconds._replace(layer=layer.under(seconds.layer), head=head.under(seconds.head))

    def _priced_at(self, pp_rank: int, replica: int) -> SlotCosts:
        return self.priced[self.layout.first_shards[pp_rank, replica].host]

    @cached_property
    def _weight_traffic(self) -> list[list[WeightTraffic]]:
        """By pipeline rank, the traffic of a layer and of the head, among replicas that share the weights."""
        model, trainable, tp = self.job.model, self.job.trainable, self.layout.candidate.tp
        layer, head = layers_of(model, trainable, 1, tp), head_of(model, trainable, tp)
        share = backward_share(model, trainable)
        return [[self._traffic(inside, layer, share), self._traffic(inside, head, 1.0)] for inside, *_ in self._levels]

    def _traffic(self, inside: LevelCosts, parameters: ParameterCount, share: float) -> WeightTraffic:
        """Return the traffic of a part of the model; a `share` of it has a backward."""
        gathered = inside.exchange_s(parameters.whole, self._travels_bytes)
        reduced = inside.exchange_s(parameters.trained, self._travels_bytes)
        reduces = parameters.trained > 0 and self._engine.reduces != "last"
        reduce_s = (reduced.reduce_s + reduced.late_s) * reduces
        return WeightTraffic(gathered.gather_s + gathered.late_s, reduce_s, exposed_part(self.job), share)

    @cached_property
    def _weight_part(self) -> float:
        """The part of a backward that computes weight gradients.

        It is half without recomputation, which otherwise adds to the backward. Under emulation it is always half.
        """
        first = self._priced_at(0, 0)
        if first.slot.speed is None or self.execution.recompute == "none":
            return 0.5
        return first.without_collectives.layer.forward_s / first.without_collectives.layer.backward_s

    def _edges(self) -> Mapping[tuple[int, str, int], Edge]:
        """Return one message of one shard by (replica, axis, earlier pipeline rank)."""
        found, ports = dict[tuple[int, str, int], Edge](), edge_ports(self._networks, self.layout)
        for group in self.layout.groups_of_first_shards:
            if group.axis in EDGE_AXES:
                earlier, path = self.layout.ranks[group.ranks[0]], self._path(group)
                codec, share = self.layout.codec_of(group), 1.0 if self._is_inside(group) else self._engine.edge_share
                size = edge_bytes(self.job.model, self.execution, codec) / share
                shared = tuple((name, size / rate) for name, rate in ports.get(group.name, ()))
                edge = Edge(size / path.bandwidth_bytes_per_s, path.latency_s, codec, shared)
                found[earlier.dp_rank, group.axis, earlier.pp_rank] = edge
        return found

    def _is_inside(self, group: PlanGroup) -> bool:
        """Return True if all ranks of the group are on one host."""
        return len({self.layout.ranks[rank].host for rank in group.ranks}) == 1

    def _path(self, group: PlanGroup) -> Path:
        """Return the group's path: its share of the network, or the links between the slots of its one host."""
        if self._is_inside(group):
            return self.priced[self.layout.ranks[group.ranks[0]].host].slot.inside
        assert group.rate_bytes_per_s is not None
        return Path(group.rate_bytes_per_s, group.latency_s)

    def norm_s(self) -> tuple[float, float]:
        """Return the latency of summing the norm over all ranks: down pipelines and back up, and around replicas."""
        replicas = (self._replica(replica, False, False) for replica in range(self.layout.candidate.dp))
        around_s = [sum((level.size - 1) * level.latency_s for level in levels) for levels in self._levels]
        return 2 * max(replica.latency_s for replica in replicas), 2 * max(around_s)

    def tied_s(self) -> float:
        """Return the seconds of the sums over copies of a tied table, which follow the last gradients unhidden."""
        size = tied_bytes(self.job.model, self.execution)
        tied = (group for group in self.layout.groups_of_first_shards if group.axis == "tied" and size)
        paths = [self._path(group) for group in tied]
        return max((size / path.bandwidth_bytes_per_s + path.latency_s for path in paths), default=0.0)

    @cached_property
    def _levels(self) -> list[list[LevelCosts]]:
        """By pipeline rank, the levels in which its replicas exchange: all at once, or inside clusters and across."""
        found: list[dict[str, list[PlanGroup]]] = [{} for _ in range(self.layout.candidate.pp)]
        for group in self.layout.groups_of_first_shards:
            if group.axis in ("dp", "dp_across"):
                found[self.layout.ranks[group.ranks[0]].pp_rank].setdefault(group.axis, []).append(group)
        return [[self._level(groups) for groups in levels.values()] for levels in found]

    def _level(self, groups: Sequence[PlanGroup]) -> LevelCosts:
        """Return the costs of the slowest of several equal groups."""
        priced = [self._group_costs(group) for group in groups]
        return LevelCosts(
            priced[0].size,
            min(each.reduce_bytes_per_s for each in priced),
            min(each.gather_bytes_per_s for each in priced),
            max(each.latency_s for each in priced),
            priced[0].device,
        )

    def _group_costs(self, group: PlanGroup) -> LevelCosts:
        path, n, device = self._path(group), len(group.ranks), self.job.device
        if self._is_inside(group):
            return LevelCosts(n, path.bandwidth_bytes_per_s, path.bandwidth_bytes_per_s, path.latency_s, device)
        share = exchange_share(n, device) * self._engine.exchange_share
        if self.job.ep > 1 and len({self.layout.ranks[rank].cluster for rank in group.ranks}) > 1:
            share /= APART
        reduced = share * self._reduce_bytes_per_s(group)
        return LevelCosts(n, reduced, share * path.bandwidth_bytes_per_s, path.latency_s, device)

    def buckets(self) -> list[list[BucketSeconds]]:
        """Return the gradient buckets by stage; none with one replica, which exchanges nothing."""
        candidate = self.layout.candidate
        if candidate.dp == 1:
            return []
        ranks = [self._rank(rank, 0) for rank in self._pp_ranks]
        exchanges = [partial(self._exchange, levels) for levels in self._levels]
        return gradient_buckets(self.job, candidate, self.layout.layers, ranks, exchanges)

    def _exchange(self, levels: Sequence[LevelCosts], parameters: int) -> BucketExchange:
        """Return the exchange of `parameters`: in one level, or inside clusters and then their parts across."""
        inside, *others = levels
        found = inside.exchange_s(parameters, self._travels_bytes)
        if not others:
            return found
        return in_two_levels(self._engine, found, others[0].exchange_s(parameters / inside.size, self._across_bytes))

    def _reduce_bytes_per_s(self, group: PlanGroup) -> float:
        """Return the rate of a reduce-scatter over several hosts, counting the bytes that a ring would send.

        Gloo's is an all-to-all, which sends more bytes out of a host, and a cluster, than a ring does.
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
            for a in held.keys() & self._networks.uplinks.keys():
                leaving = sum(count for (one, other), count in hops.items() if one == a != other)
                crossing = max(crossing, held[a] * (n - held[a]) / max(1, leaving))
            rates.append(group.trunk_bytes_per_s * (n - 1) / crossing)
        return min(rates)

    def step_s(self, buckets: Sequence[Sequence[BucketSeconds]]) -> float:
        """Return the seconds of the whole step with these gradient buckets by stage."""
        simulated_s = simulate_sharing(self.pipelines(), buckets, self.most_faster)
        return simulated_s + sum(self.norm_s()) + self.tied_s() + self.optimizer_s()

    def optimizer_s(self) -> float:
        """Return the seconds of the slowest rank's update."""
        replicas = range(self.layout.candidate.dp)
        kinds = [{self._priced_at(rank, replica) for replica in replicas} for rank in self._pp_ranks]
        slots = [[priced.slot for priced in kind] for kind in kinds]
        return slowest_update_s(self.job, self.layout.candidate, self.execution, self.layout.layers, slots)


def edge_ports(networks: Networks, layout: Layout) -> Mapping[str, tuple[tuple[PortName, float], ...]]:
    """Return the ports of each first shard's edge, by its name, with the bytes/s that each replica gets of them."""
    edges = [group for group in layout.groups_of_first_shards if group.axis in EDGE_AXES]
    found = {group.name: list(_ports_of(networks, layout, group)) for group in edges}
    replica = {group.name: layout.ranks[group.ranks[0]].dp_rank for group in edges}
    uses = {(group.axis, port, replica[group.name]) for group in edges for port, _ in found[group.name]}
    users = Counter((axis, port) for axis, port, _ in uses)
    tp = layout.candidate.tp  # the shards of a rank share its host
    return {
        group.name: tuple((port, rate / tp / users[group.axis, port]) for port, rate in found[group.name])
        for group in edges
    }


def _ports_of(networks: Networks, layout: Layout, group: PlanGroup) -> Iterator[tuple[PortName, float]]:
    """Yield an edge's ports with a known rate: the sender's NIC, the receiver's, a trunk and uplinks."""
    ends = [layout.ranks[rank] for rank in group.ranks]
    hosts, positions = [end.host for end in ends], (0, 1) if group.axis == "pp_forward" else (1, 0)
    if hosts[0] == hosts[1]:
        return
    route = networks.route(hosts)
    for position, way in zip(positions, ("out", "in"), strict=True):
        rate = route.ports_bytes_per_s[position]
        if rate:
            yield (hosts[position], "NVLink" if route.nvlink else route.interfaces[position], way), rate
    sender, receiver = (ends[position].cluster for position in positions)
    yield from networks.shared_wires(sender, receiver).items()
