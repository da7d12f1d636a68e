"""The numbers that price one candidate: seconds, bytes and capacities by class of equal hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, combinations_with_replacement

from holmes_core.records.job import Job
from holmes_runtime.config.rank_grid import NetName
from planner.cost.collectives import PassTimes, shard_exchange_bytes
from planner.cost.counts import Execution, edge_bytes
from planner.cost.eager import PassBytes
from planner.cost.engines import ENGINES, Engine, engine_of
from planner.cost.fill import fill_share
from planner.cost.measured_link import NOT_MEASURED
from planner.cost.packing import lossiest_codec
from planner.cost.slot import (
    Slot,
    dense_layer_s,
    exchanged_parameters,
    head_parts_s,
    layer_parts_s,
)
from planner.cost.trained import embedding_of, head_of, layers_of
from planner.problem.candidates import Candidate
from planner.problem.fleet import Fleet
from planner.problem.group_places import replicas_together
from planner.problem.memory_room import dense_on_first_stage, layer_room
from planner.problem.networks import Networks

# The price of an exchange between clusters is multiplied by this if a stage's ranks share experts. No stage is then
# placed over clusters, where tokens would cross in every layer.
APART = 1000.0


@dataclass(frozen=True)
class Crossing:
    """The costs of the path between two clusters, or between hosts of one, without their NICs; 0 if not known.

    `edge_s` is one message in one direction, for all replicas at once. A parameter byte of a stage takes
    `path_s_per_byte` of the path, as it would of a NIC, and `trunk_s_per_byte` of the trunk or uplink all groups share.
    """

    edge_s: float
    trunk_edge_s: float  # of the trunk alone, without uplinks
    path_s_per_byte: float
    trunk_s_per_byte: float
    latency_s: float


FREE = Crossing(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Parameters of one candidate on one fleet. Tuples are by class unless noted. Compared by identity.

    `layer` and `head` are one micro-batch's. An edge's seconds are one message in one direction while all replicas of
    a host send at once; on the shared network with the lossiest codec that job.yaml allows. `*_sync_s_per_byte` is the
    time to reduce and gather one parameter byte of a whole stage while no other stage of a host does so. `inside_` is
    the same for a stage inside one host. Edges inside a host are free.
    """

    candidate: Candidate
    num_layers: int
    total_microbatches: int  # of all replicas
    cluster: tuple[int, ...]
    group_slots: tuple[int, ...]
    group_slots_per_host: tuple[int, ...]
    memory_bytes: tuple[int | None, ...]
    capacity: tuple[tuple[int, ...], ...]  # [stage][class]: the most layers that memory allows under the fill
    layer: tuple[PassTimes, ...]
    head: tuple[PassTimes, ...]
    net_names: tuple[NetName | None, ...]
    fabric_edge_s: tuple[float, ...]
    shared_edge_s: tuple[float, ...]
    fabric_port_s: tuple[float, ...]  # as edges, for the NIC alone, which several edges share
    shared_port_s: tuple[float, ...]
    has_one_nic: tuple[bool, ...]  # for the fabric and the shared network
    fabric_sync_s_per_byte: tuple[float, ...]
    shared_sync_s_per_byte: tuple[float, ...]
    inside_sync_s_per_byte: tuple[float, ...]
    layer_sync_bytes: int
    first_sync_bytes: int
    last_sync_bytes: int
    action_s: tuple[float, ...]  # overhead of a forward or backward in a pipeline; only for the simulation
    hides_edges: bool  # the schedule may keep enough micro-batches in flight to hide the edges
    across_part: float = 1.0  # bytes between clusters in two levels, over a parameter's bytes in one ring
    has_two_levels: bool = True  # replicas may exchange inside clusters first, and then across
    engine: Engine = ENGINES["holmes"]
    fill_share: float = 1.0  # waiting during fill and drain over that under 1F1B; see cost/fill.py
    crossings: Mapping[tuple[int, int], Crossing] = field(default_factory=dict)
    """Measured crossings by two cluster indices, the smaller first; inside a cluster, by its index twice."""
    uplink_edge_s: Mapping[int, float] = field(default_factory=dict)
    """One message, all replicas at once, on the uplink of a cluster that has one."""
    slots: tuple[Slot, ...] = ()  # for the update; only for the simulation
    dense: tuple[PassTimes, ...] = ()  # a layer without experts, if the model's first ones have none
    first_dense: int = 0  # layers without experts assumed on the first stage: all of the model's, or none
    dense_sync_bytes: int = 0
    together: int = 1  # neighbouring replicas that share experts or sequences; they are in one class
    weight_bytes: PassBytes | None = None
    """A layer's weights and gradients in a micro-batch, if replicas in several classes may share weights."""

    @cached_property
    def num_microbatches(self) -> int:
        """The micro-batches of the busiest replica when they are shared as evenly as possible."""
        return -(-self.total_microbatches // self.candidate.dp)

    @cached_property
    def layer_s(self) -> tuple[float, ...]:
        """Seconds of forward and backward of one layer: of the faster kind if it may be either."""
        if self.dense and not self.first_dense:
            return tuple(min(one.both_s, other.both_s) for one, other in zip(self.layer, self.dense, strict=True))
        return tuple(each.both_s for each in self.layer)

    @cached_property
    def dense_s(self) -> tuple[float, ...]:
        """Seconds of forward and backward of all `first_dense` layers."""
        if not self.first_dense:
            return (0.0,) * len(self.layer)
        return tuple(self.first_dense * each.both_s for each in self.dense)

    @cached_property
    def head_s(self) -> tuple[float, ...]:
        """Seconds of forward and backward of the head."""
        return tuple(each.both_s for each in self.head)

    @cached_property
    def shares_wires(self) -> bool:
        """True if the rate of a trunk or an uplink is known."""
        return bool(self.uplink_edge_s) or any(crossing.trunk_edge_s for crossing in self.crossings.values())

    @cached_property
    def cluster_slots(self) -> Mapping[int, int]:
        """Group slots by cluster."""
        found = dict.fromkeys(self.cluster, 0)
        for cluster, slots in zip(self.cluster, self.group_slots, strict=True):
            found[cluster] += slots
        return found

    @cached_property
    def aligned(self) -> bool:
        """True if the hosts can hold p stages such that none begins or ends inside a host that another one uses."""
        return sum(map(self._aligned_slots, range(len(self.group_slots)))) >= self.candidate.pp

    def _aligned_slots(self, c: int) -> int:
        per_host = self.group_slots_per_host[c]
        return aligned_stages(self.group_slots[c] // per_host if per_host else 0, per_host, self.candidate.dp)

    @cached_property
    def most_stages(self) -> tuple[int, ...]:
        """The most stages that each class can hold by itself."""
        classes = range(len(self.group_slots))
        return tuple(
            self._aligned_slots(c) if self.aligned else self.group_slots[c] // self.candidate.dp for c in classes
        )

    @cached_property
    def stages_per_host(self) -> tuple[int, ...]:
        """The number of stages of one class on a host. Edges between them are free."""
        per_host = self.group_slots_per_host
        return tuple(max(1, group_slots // self.candidate.dp) if self.aligned else 1 for group_slots in per_host)

    def sync_bytes(self, stage: int, num_layers: int) -> int:
        """Return the bytes of a stage's parameters in one reduction and one gathering, all shards together."""
        size = num_layers * self.layer_sync_bytes
        if stage == 0:
            dense = min(num_layers, self.first_dense)
            size += self.first_sync_bytes + dense * (self.dense_sync_bytes - self.layer_sync_bytes)
        if stage == self.candidate.pp - 1:
            size += self.last_sync_bytes
        return size


def aligned_stages(num_hosts: int, group_slots_per_host: int, dp: int) -> int:
    """Return the number of stages of dp replicas that fit if no stage begins or ends inside another's host."""
    if not num_hosts or not group_slots_per_host:
        return 0
    return (
        num_hosts * (group_slots_per_host // dp)
        if dp <= group_slots_per_host
        else num_hosts // -(-dp // group_slots_per_host)
    )


def make_coefficients(job: Job, fleet: Fleet, networks: Networks, candidate: Candidate) -> Coefficients:
    """Return the coefficients of `candidate` on `fleet`, whose hosts communicate over `networks`."""
    tp, dp, classes = candidate.tp, candidate.dp, fleet.classes
    execution, model, engine = candidate.execution(job), job.model, engine_of(job)
    at_work = [each.hardware.slot.among(candidate.num_ranks) for each in classes]
    seconds = {slot: slot_s(job, slot, execution) for slot in set(at_work)}
    slots = [seconds[slot] for slot in at_work]
    per_host = [each.group_slots_per_host(tp) for each in classes]
    at_once = [min(dp, group_slots) for group_slots in per_host]
    message = tp * edge_bytes(model, execution) / engine.edge_share
    # Messages on the network that all hosts share:
    packed = tp * edge_bytes(model, execution, lossiest_codec(job)) / engine.edge_share
    bytes_each, inside = sum(engine.travels_bytes(execution.value_bytes)), shard_exchange_bytes(1.0, dp)
    exchange = inside / engine.exchange_share
    across = exchange * (APART if job.ep > 1 else 1)
    names, hardware = fleet.cluster_names, [each.hardware for each in classes]
    rates = [each.rates for each in hardware]
    num_microbatches = candidate.num_microbatches(job.batch_parts)
    memories = [(each.memory_bytes, each.host_memory_bytes) for each in hardware]
    return Coefficients(
        candidate=candidate,
        num_layers=model.num_layers,
        total_microbatches=job.batch_parts // candidate.micro_batch_size,
        cluster=tuple(names.index(each.cluster) for each in classes),
        group_slots=tuple(each.num_group_slots(tp) for each in classes),
        group_slots_per_host=tuple(per_host),
        memory_bytes=tuple(each.memory_bytes for each in hardware),
        capacity=layer_room(job, memories, candidate),
        layer=tuple(layer for layer, _ in slots),
        dense=tuple(dense_layer_s(job, execution, slot) for slot in at_work) if model.first_dense_layers else (),
        first_dense=dense_on_first_stage(job, memories, candidate),
        dense_sync_bytes=tp * bytes_each * layers_of(model.dense, job.trainable, 1, tp).trained,
        head=tuple(head for _, head in slots),
        slots=tuple(at_work),
        net_names=tuple(each.net_name for each in rates),
        fabric_edge_s=_edges_s(message, at_once, (each.fabric_bytes_per_s for each in rates)),
        shared_edge_s=_edges_s(packed, at_once, (each.shared_bytes_per_s for each in rates)),
        fabric_port_s=_edges_s(message, at_once, (each.fabric_port_bytes_per_s for each in rates)),
        shared_port_s=_edges_s(packed, at_once, (each.shared_port_bytes_per_s for each in rates)),
        has_one_nic=tuple(each.has_one_nic for each in rates),
        crossings=_crossings(fleet, networks, packed, max(at_once), (dp, across)),
        uplink_edge_s={
            x: packed * dp / networks.uplinks[name] for x, name in enumerate(names) if name in networks.uplinks
        },
        fabric_sync_s_per_byte=tuple(_free_or(exchange, each.fabric_bytes_per_s) for each in rates),
        shared_sync_s_per_byte=tuple(_free_or(across, each.shared_bytes_per_s) for each in rates),
        inside_sync_s_per_byte=tuple(inside / tp / each.slot.inside.bandwidth_bytes_per_s for each in hardware),
        layer_sync_bytes=tp * bytes_each * max(exchanged_parameters(model, execution, slot) for slot in set(at_work)),
        first_sync_bytes=tp * bytes_each * embedding_of(model, job.trainable, tp).trained,
        last_sync_bytes=tp * bytes_each * head_of(model, job.trainable, tp, is_first=candidate.pp == 1).trained,
        action_s=tuple(slot.action_s for slot in at_work),
        hides_edges=job.parallel.schedule in (None, "eager") and "eager" in engine.schedules,
        has_two_levels=engine.two_levels and (candidate.copies > 1 or not engine.copies_update),
        engine=engine,
        together=replicas_together(job, tp),
        across_part=sum(engine.across_bytes(execution.value_bytes, candidate.pp, num_microbatches)) / bytes_each,
        fill_share=fill_share(job, candidate.fill, candidate.pp, num_microbatches, slots[0][0]),
    )


def _crossings(
    fleet: Fleet, networks: Networks, message_bytes: float, at_once: int, replicas: tuple[int, float]
) -> dict[tuple[int, int], Crossing]:
    """Return the crossings. A host sends at most `at_once` messages at the same time, a stage one per replica.

    `replicas`: the number per stage, and the share of a byte that they exchange.
    """
    (dp, exchange), found = replicas, {}
    for (x, one), (y, other) in combinations_with_replacement(enumerate(fleet.cluster_names), 2):
        measured = networks.connection(one, other)
        path = measured.fastest_bytes_per_s if x != y else None  # inside a cluster, NICs give the rate
        trunk = measured.trunk_bytes_per_s
        narrowest = min((rate for rate in (trunk, *measured.uplinks.values()) if rate is not None), default=None)
        trunk_edge_s = _free_or(message_bytes * dp, trunk)
        edge_s = max(_free_or(message_bytes * at_once, path), _free_or(message_bytes * dp, narrowest))
        if measured != NOT_MEASURED:
            rates = _free_or(exchange, path), _free_or(exchange, narrowest)
            found[x, y] = Crossing(edge_s, trunk_edge_s, *rates, measured.latency_s)
    return found


def _edges_s(size_bytes: float, at_once: Sequence[int], rates: Iterable[float | None]) -> tuple[float, ...]:
    """Return, by class, the seconds of `at_once` messages sent together."""
    return tuple(_free_or(size_bytes * number, rate) for number, rate in zip(at_once, rates, strict=True))


def _free_or(size_bytes: float, bandwidth_bytes_per_s: float | None) -> float:
    """Return the seconds of `size_bytes`; 0 if a network has no rate because none is needed (see `require_rates`)."""
    return size_bytes / bandwidth_bytes_per_s if bandwidth_bytes_per_s else 0.0


def slot_s(job: Job, slot: Slot, execution: Execution) -> tuple[PassTimes, PassTimes]:
    """Return the seconds of one layer, with tensor collectives, and of the head, for one micro-batch on one slot."""
    layer, sums = layer_parts_s(job, execution, slot)
    return layer + sums, head_parts_s(job, execution, slot)


def joined_s(coeffs: Coefficients, classes: Iterable[int], fabric: Sequence[float], shared: Sequence[float]) -> float:
    """Return the seconds of the slowest of `classes` on the network that joins them.

    It is the fabric of one cluster if all are there with the same transport, else the shared network. `fabric` and
    `shared` are seconds by class.
    """
    classes = tuple(classes)
    seconds = fabric if are_alike(coeffs, classes) else shared
    return max([seconds[c] for c in classes])


def are_alike(coeffs: Coefficients, classes: Iterable[int]) -> bool:
    """Return True if the classes share the fabric of one cluster with the same transport."""
    return len({(coeffs.cluster[c], coeffs.net_names[c]) for c in classes}) == 1


def crossings_of(coeffs: Coefficients, classes: Iterable[int]) -> Iterator[Crossing]:
    """Yield the crossings between the clusters of `classes`, or the one inside if there is only one cluster."""
    clusters = sorted({coeffs.cluster[c] for c in classes})
    pairs = combinations(clusters, 2) if len(clusters) > 1 else [(clusters[0], clusters[0])]
    return (coeffs.crossings.get(pair, FREE) for pair in pairs)
