"""The seconds of stages, messages, gradient buckets and updates, for every simulation of a step.

`PlacementSimulator` fills the records below from classes of hosts, `LayoutCosts` from ranks and process groups. Both
then call the same functions for compute and packing by stage, gradient buckets, and the slowest update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from holmes_core.records.job import Job
from holmes_runtime.config.codec import Codec, with_packing
from holmes_runtime.config.model_shape import ModelShape, bucket_bytes, gradient_order
from planner.cost.collectives import PassTimes, expert_exchange_part
from planner.cost.compute_time import split_factor
from planner.cost.counts import Execution, edge_bytes, edge_values
from planner.cost.engines import Engine, engine_of
from planner.cost.slot import Slot, exchanged_parameters, update_s
from planner.cost.trained import dense_layers
from planner.problem.candidates import Candidate
from planner.schedule.buckets import WHOLE, BucketExchange, BucketSeconds, StagePart, make_buckets, with_dense
from planner.schedule.shared_ports import SharedPorts
from planner.schedule.simulate import PipelineTimes
from planner.search.closed_form import Edge, PortName
from planner.tolerances import ROUNDING

NEGLIGIBLE = 0.05  # of the slowest stage's seconds: ports with less to do made no simulated step 0.5 % longer

Exchange = Callable[[int], BucketExchange]
"""A function that returns the seconds of exchanging a number of parameters of one tensor shard."""


class DenseLayers(NamedTuple):
    """First layers without experts: the model's shape, and the seconds of one such layer with its collectives."""

    shape: ModelShape
    layer: PassTimes


class RankSeconds(NamedTuple):
    """One micro-batch on a pipeline rank: a layer with its collectives, the head, and the overhead of an action.

    `exchanged` is the number of a layer's parameters in the exchange of gradients, if some count only in part, and
    `expert_part` the part that counts of a routed expert's. `dense` is set if first layers have no experts.
    """

    layer: PassTimes
    head: PassTimes
    action_s: float
    exchanged: int | None = None
    expert_part: float = 1.0
    dense: DenseLayers | None = None

    def compute_s(self, held: int, dense: int) -> PassTimes:
        """Return the seconds of `held` layers, `dense` of them without experts."""
        if self.dense is None or not dense:
            return PassTimes(held * self.layer.forward_s, held * self.layer.backward_s)
        one, other = self.layer, self.dense.layer
        rest = held - dense
        return PassTimes(
            rest * one.forward_s + dense * other.forward_s, rest * one.backward_s + dense * other.backward_s
        )


def with_experts(
    seconds: RankSeconds, job: Job, execution: Execution, slot: Slot, without: PassTimes | None
) -> RankSeconds:
    """Return the seconds of a rank on `slot`, adjusted for experts; `without` is a layer without any."""
    exchanged, part = exchanged_parameters(job.model, execution, slot), expert_exchange_part(execution, slot.peers)
    dense = None
    if without is not None:
        dense = DenseLayers(job.model, without)
    return seconds._replace(exchanged=exchanged, expert_part=part, dense=dense)


@dataclass(frozen=True)
class ReplicaSeconds:
    """One replica: its pipeline ranks, and one message over each edge between them.

    Edges are by earlier pipeline rank. The last one leads back to the first rank, for ranks that hold several stages.
    `weight_part` is as in `PipelineTimes`.
    """

    ranks: Sequence[RankSeconds]
    forward_edges: Sequence[Edge]
    backward_edges: Sequence[Edge]
    weight_part: float = 0.5

    @property
    def latency_s(self) -> float:
        """Seconds that a value takes from the first rank to the last by latency alone."""
        return sum(edge.latency_s for edge in self.forward_edges[:-1])

    def compute_s(self, layers: Sequence[int]) -> list[tuple[float, float]]:
        """Return, by stage, the seconds of a forward and a backward without messages; `layers` are by stage."""
        found, last, dense = [], len(layers) - 1, dense_of(self.ranks[0], layers)
        for stage, held in enumerate(layers):
            rank = self.ranks[stage % len(self.ranks)]
            whole, head = rank.compute_s(held, dense[stage]), rank.head
            forward_s = whole.forward_s + head.forward_s * (stage == last)
            found.append((forward_s, whole.backward_s + head.backward_s * (stage == last)))
        return found

    def work_s(self, layers: Sequence[int]) -> list[float]:
        """Return, by rank, its seconds of one micro-batch; `layers` are by stage."""
        stages_s, pp = list(map(sum, self.compute_s(layers))), len(self.ranks)
        return [sum(stages_s[rank::pp]) for rank in range(pp)]

    def times(self, job: Job, execution: Execution, layers: Sequence[int], messages: bool = True) -> PipelineTimes:
        """Return the seconds of the replica's stages and edges; without `messages`, only the compute."""
        pp, seconds, factor = len(self.ranks), self.compute_s(layers), split_factor(job)
        if not messages or pp == 1:
            forward_s, backward_s = zip(*seconds, strict=True)
            free = (0.0,) * (len(layers) - 1)
            return PipelineTimes(forward_s, backward_s, free, free, self.weight_part, factor)
        actions_s = [self.ranks[stage % pp].action_s for stage in range(len(layers))]
        longer = [(f + action_s, b + action_s) for (f, b), action_s in zip(seconds, actions_s, strict=True)]
        there = [self.forward_edges[stage % pp] for stage in range(len(layers) - 1)]
        back = [self.backward_edges[stage % pp] for stage in range(len(layers) - 1)]
        codecs = [(one.codec, other.codec) for one, other in zip(there, back, strict=True)]
        sizes = {
            codec: float(edge_bytes(job.model, execution, codec)) for codec in {c for pair in codecs for c in pair}
        }
        return PipelineTimes(
            *with_packing(job.device, edge_values(job.model, execution), longer, codecs),
            tuple(edge.busy_s for edge in there),
            tuple(edge.busy_s for edge in back),
            self.weight_part,
            factor,
            tuple(edge.latency_s for edge in there),
            shared_ports([*there, *back], sizes, max(map(sum, seconds))),
        )


def dense_of(rank: RankSeconds, layers: Sequence[int]) -> Sequence[int]:
    """Return the number of layers without experts on each stage."""
    return [0] * len(layers) if rank.dense is None else dense_layers(rank.dense.shape, layers)


def shared_ports(edges: Sequence[Edge], sizes: Mapping[Codec, float], slowest_s: float) -> SharedPorts | None:
    """Return the ports that several of `edges` share, forward edges first, and the bytes of a message by edge.

    Ports that hardly delay a message, compared with the `slowest_s` that a stage computes, count as not shared.
    """
    uses: dict[PortName, list[tuple[int, float]]] = {}
    for number, edge in enumerate(edges):
        for name, use_s in edge.ports:
            uses.setdefault(name, []).append((number, use_s))
    least_s = NEGLIGIBLE * slowest_s
    ports = tuple(tuple(port) for port in uses.values() if len(port) > 1 and sum(use_s for _, use_s in port) > least_s)
    if not ports:
        return None
    return SharedPorts(ports, tuple(sizes[edge.codec] for edge in edges))


def gradient_buckets(
    job: Job, candidate: Candidate, layers: Sequence[int], ranks: Sequence[RankSeconds], exchanges: Sequence[Exchange]
) -> list[list[BucketSeconds]]:
    """Return the gradient buckets by stage; `layers` are by stage, `ranks` and `exchanges` by pipeline rank."""
    engine, found, last = engine_of(job), list[list[BucketSeconds]](), len(layers) - 1
    alike: dict[object, list[BucketSeconds]] = {}  # most of many stages are alike
    without = dense_of(ranks[0], layers)
    for stage, held in enumerate(layers):
        rank = stage % candidate.pp
        layer, head, _, exchanged, _, dense = ranks[rank]
        full_bytes = 0 if engine.overlaps_exchange else WHOLE  # sharded by layer
        if engine.overlaps_exchange and candidate.weight_shards == 1:
            full_bytes = bucket_bytes(candidate.rank_parameters(job, layers, rank))
        kind = held, stage == 0, stage == last, layer, head, exchanges[rank], full_bytes, exchanged, without[stage]
        if kind not in alike:
            exchange = exchanges[rank] if engine.gathers_first else _all_reduced(exchanges[rank])
            parts = with_dense(gradient_order(held, stage == 0, stage == last), without[stage])
            backward_s: dict[StagePart, float] = {"head": head.backward_s, "layer": layer.backward_s}
            if dense is not None:
                backward_s["dense"] = dense.layer.backward_s
            sizes = full_bytes, exchanged, job.trainable
            alike[kind] = make_buckets(job.model, candidate.tp, parts, backward_s, exchange, *sizes)
        found.append(alike[kind])
    return found


def in_two_levels(engine: Engine, inside: BucketExchange, across: BucketExchange) -> BucketExchange:
    """Return the exchange of a bucket inside clusters, and of its parts across them, as the engine runs it."""
    if engine.copies_update:
        across = across.all_reduced()
    late_s = inside.late_s + across.late_s
    if not engine.overlaps_levels:
        return BucketExchange(inside.reduce_s + across.reduce_s, inside.gather_s + across.gather_s, late_s)
    return BucketExchange(inside.reduce_s, inside.gather_s, late_s, across.reduce_s, across.gather_s)


def _all_reduced(exchange: Exchange) -> Exchange:
    return lambda parameters: exchange(parameters).all_reduced()


def slowest_update_s(
    job: Job, candidate: Candidate, execution: Execution, layers: Sequence[int], slots: Sequence[Iterable[Slot]]
) -> float:
    """Return the seconds of the slowest rank's update; `layers` are by stage, `slots` by pipeline rank."""
    part = execution.dp / execution.expert_dp  # fewer ranks update an expert
    parameters = [candidate.weighed_parameters(job, layers, rank, part) for rank in range(candidate.pp)]
    return max(update_s(size, execution, slot) for size, held in zip(parameters, slots, strict=True) for slot in held)


def hiding_depths(stages: Sequence[tuple[float, float]], edges: Sequence[Edge]) -> list[int]:
    """Return, by edge, the micro-batches in flight, in addition to 1F1B's, that hide a round trip over it."""
    pace_s = max(*(f + b for f, b in stages), *(edge.busy_s for edge in edges))
    trips_s = [sum(stages[e]) + sum(stages[e + 1]) + 2 * (edge.busy_s + edge.latency_s) for e, edge in enumerate(edges)]
    return [max(0, ceil(trip_s / pace_s * (1 - ROUNDING)) - 2) if pace_s else 0 for trip_s in trips_s]
