"""Lower bounds on a candidate's step, in seconds, from the speed and the number of group slots alone.

They need none of a candidate's coefficients, and exclude all but a few hundred of tens of thousands of candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from functools import cache, partial
from math import ceil
from typing import NamedTuple

from holmes_runtime.config.model_shape import expert_parameters, layer_parameters
from planner.cost.collectives import PassTimes, shard_exchange_bytes
from planner.cost.counts import whole_layers_bytes
from planner.cost.engines import engine_of
from planner.cost.fill import fill_share
from planner.cost.rank_memory import more_layer_bytes
from planner.cost.slot import dense_layer_s
from planner.cost.trained import layers_of
from planner.problem.candidates import Candidate, more_recompute, with_sharded_weights
from planner.problem.coefficients import APART, slot_s
from planner.problem.exchange_rates import two_levels
from planner.problem.memory_room import dense_on_first_stage
from planner.problem.problem import Problem
from planner.problem.sharded_weights import least_traffic
from planner.tolerances import ROUNDING


class ClassSpeed(NamedTuple):
    """Group slots of equal speed in one cluster: their seconds per layer, their number, and the cluster's name."""

    layer_s: float
    group_slots: int
    cluster: str


class CandidateSpeeds(NamedTuple):
    """Speeds at one tensor degree, micro-batch size and recomputation. `classes` are fastest first.

    `first` has the passes of a layer on the first class of the fleet.
    """

    classes: tuple[ClassSpeed, ...]
    first: PassTimes
    least_head_s: float
    most_head_s: float
    dense: float = 1.0  # a layer without experts takes at least this share of the seconds of one with them


class EarlyBounds:
    """Lower bounds on the step of all candidates of a problem."""

    def __init__(self, problem: Problem) -> None:
        self._job, self._fleet, self._num_layers = problem.job, problem.fleet, problem.job.model.num_layers
        self._batch_parts, self._first_dense = problem.job.batch_parts, problem.job.model.first_dense_layers
        self._speeds, self._fewest_stages = cache(self._read_speeds), cache(self._read_fewest_stages)
        self._more_recompute = cache(partial(more_recompute, problem.job))
        self._crossing_sync_s = cache(self._read_crossing_sync_s)
        hardware = [each.hardware for each in problem.fleet.classes]
        self._memories = {(each.memory_bytes, each.host_memory_bytes) for each in hardware}
        hosts = Counter[str]()
        for each in problem.fleet.classes:
            hosts[each.cluster] += len(each.hosts)
        self._most_hosts = max(hosts.values())  # in one cluster

    def fits(self, candidate: Candidate) -> bool:
        """Return True if the class with the largest memory might hold a stage's layers."""
        c = candidate
        states = c.weight_shards, c.optimizer_offload, c.instances
        return c.pp >= self._fewest_stages(Candidate(c.tp, 1, c.dp, c.micro_batch_size, c.recompute, "1f1b", *states))

    def more_recompute(self, candidate: Candidate) -> Candidate | None:
        """Return the result of `more_recompute` in candidates.py, cached by the few fields that matter to it."""
        c = candidate
        more = self._more_recompute(Candidate(c.tp, min(c.pp, 2), 1, 1, c.recompute, c.fill, c.weight_shards))
        return None if more is None else c._replace(recompute=more.recompute)

    def with_shared_weights(self, candidate: Candidate) -> Iterator[Candidate]:
        """Yield the candidate under ZeRO-3 with its replicas over one cluster, two, and so on, where it may fit."""
        for number in range(1, len(self._fleet.cluster_names) + 1):
            sharded = with_sharded_weights(self._job, candidate, number)
            if sharded is not None and self.fits(sharded):
                yield sharded

    def compute_s(self, candidate: Candidate) -> float:
        """Return a lower bound on the step, in seconds, with stages in blocks, from compute alone.

        The pace is no faster than all group slots together. Nor is it faster than the fastest class with L/p layers,
        rounded up, since the fullest of p stages holds at least as many.
        """
        speeds = self._speeds_of(candidate)
        fullest_s = speeds.classes[0].layer_s * -(-self._even_layers(candidate, speeds) // candidate.pp)
        average_s = self._average_s(candidate, speeds)
        return self._at_pace_s(candidate, average_s if average_s > fullest_s else fullest_s, speeds)

    def whole_layers_s(self, candidate: Candidate, mixed: bool) -> float | None:
        """Return a lower bound like `compute_s`, for stages of whole layers; None if the hosts cannot hold p stages.

        A stage takes its group slots from one cluster; with `mixed`, from all clusters.
        """
        stages = self._stages_by_pace(candidate, mixed)
        if sum(count for _, count in stages) < candidate.pp:
            return None
        if stages[0][0] == 0:
            return self._at_pace_s(candidate, 0.0, self._speeds_of(candidate))
        number = self._even_layers(candidate, self._speeds_of(candidate))
        pace_s = number / sum(count / layer_s for layer_s, count in stages)
        while True:
            held = [int(pace_s * (1 + ROUNDING) / layer_s) for layer_s, _ in stages]
            if sum(layers * count for layers, (_, count) in zip(held, stages, strict=True)) >= number:
                return self._at_pace_s(candidate, pace_s / (1 + ROUNDING), self._speeds_of(candidate))
            pace_s = min((layers + 1) * layer_s for layers, (layer_s, _) in zip(held, stages, strict=True))

    def whole_replicas_s(self, candidate: Candidate) -> float:
        """Return a lower bound on the step, in seconds, with each replica in one class.

        Some replica runs at least the mean number of micro-batches, rounded up. Together, replicas of unequal shares
        reach the mean at the average pace. Each fills and drains p stages, and gradients cross between classes.
        """
        speeds, crossing_s = self._speeds_of(candidate), self.crossing_sync_s(candidate)
        held = -(-self._even_layers(candidate, speeds) // candidate.pp)
        sync_s = crossing_s
        if not self._job.model.first_dense_layers:
            sync_s = max(crossing_s, held * (crossing_s - speeds.classes[-1].layer_s) - speeds.most_head_s)
        mean = self._batch_parts / (candidate.dp * candidate.micro_batch_size)
        average_s = self._average_s(candidate, speeds)
        alone_s = self._at_pace_s(candidate, speeds.classes[0].layer_s * held, speeds)
        together_s = self._at_pace_s(candidate, average_s, speeds, mean)
        filled_s = (mean + self._fill_share(candidate) * (candidate.pp - 1)) * average_s
        return max(alone_s, together_s, filled_s) + sync_s

    def crossing_sync_s(self, candidate: Candidate) -> float:
        """Return a lower bound on the exchange of one layer's parameters between replicas in several classes."""
        return self._crossing_sync_s(candidate.tp, candidate.dp)

    def _read_crossing_sync_s(self, tp: int, dp: int) -> float:
        classes = self._fleet.classes
        shared, fabric = (
            max((rate for each in classes if (rate := getattr(each.hardware.rates, name)) is not None), default=None)
            for name in ("shared_bytes_per_s", "fabric_bytes_per_s")
        )
        if shared and self._job.ep > 1:
            shared /= APART
        names = {each.cluster for each in classes}
        inside_one = fabric if len(names) < len(classes) else None
        fastest = max((rate for rate in (shared, inside_one) if rate is not None), default=None)
        if fastest is None:
            return 0.0
        ring = 1 / fastest
        for count in range(2, len(names) + 1):
            if engine_of(self._job).two_levels and dp % count == 0 and shared and fabric:
                across, inside = two_levels(dp, count)
                groups = max(1.0, dp / count / self._most_hosts)  # on the fullest host, one per replica
                ring = min(ring, max(groups * across / shared, inside / fabric))
        travels = sum(engine_of(self._job).travels_bytes(self._job.value_bytes))
        model, ep = self._job.model, self._job.ep
        layer = layers_of(model, self._job.trainable, 1, tp, ep).trained
        own = layer - expert_parameters(model, ep) * (self._job.trainable is None)
        if model.first_dense_layers:
            own = min(own, layer_parameters(model.dense, tp))
        size = tp * own * travels
        return shard_exchange_bytes(size, dp) * float(ring)

    def _at_pace_s(
        self, candidate: Candidate, pace_s: float, speeds: CandidateSpeeds, mean: float | None = None
    ) -> float:
        """Return the seconds of the steady state at that pace, plus the fill on the fastest group slots.

        They are for the micro-batches of the busiest replica, or for `mean` micro-batches.
        """
        m = candidate.num_microbatches(self._batch_parts) if mean is None else mean
        share = min(self._fill_share(candidate), m)  # otherwise a slower pace would reduce the result
        work_s = self._layers_of_work(candidate, speeds) * speeds.classes[0].layer_s + speeds.least_head_s
        return (m - share) * pace_s + share * work_s

    def _average_s(self, candidate: Candidate, speeds: CandidateSpeeds) -> float:
        """Return a stage's seconds per micro-batch if the fastest group slots all worked for the same time."""
        left, rate = candidate.pp * candidate.dp, 0.0
        for layer_s, group_slots, _ in speeds.classes:
            if group_slots >= left:
                rate += left / layer_s if layer_s else 0.0
                break
            rate += group_slots / layer_s if layer_s else 0.0
            left -= group_slots
        return self._layers_of_work(candidate, speeds) * candidate.dp / rate if rate else 0.0

    def _layers_of_work(self, candidate: Candidate, speeds: CandidateSpeeds) -> float:
        """Return a number of layers with experts that together take no longer than the model's layers."""
        if not self._first_dense:
            return self._num_layers
        dense = self._dense_on_first(candidate)
        return self._num_layers + dense * (speeds.dense - 1) if dense else self._num_layers

    def _even_layers(self, candidate: Candidate, speeds: CandidateSpeeds) -> int:
        """Return the least number of layers with experts that stages must have room for at a common pace.

        At that pace, the first stage has room for more of them, as its layers without experts are faster.
        """
        dense = self._dense_on_first(candidate)
        return max(1, self._num_layers - ceil(dense * (1 - speeds.dense) - ROUNDING)) if dense else self._num_layers

    def _stages_by_pace(self, candidate: Candidate, mixed: bool) -> list[tuple[float, int]]:
        """Return pairs (seconds per layer, stages), fastest first. At most so many of p stages are that fast."""
        speeds, left = self._speeds_of(candidate).classes, candidate.pp
        pairs = []
        group_slots = [(speed.cluster, speed.group_slots) for speed in speeds]
        for speed, count in zip(speeds, more_stages(group_slots, candidate.dp, mixed), strict=True):
            stages = min(left, count)
            left -= stages
            if stages:
                pairs.append((speed.layer_s, stages))
        return pairs

    def _fill_share(self, candidate: Candidate) -> float:
        if candidate.fill == "1f1b":
            return 1.0
        m = candidate.num_microbatches(self._batch_parts)
        return fill_share(self._job, candidate.fill, candidate.pp, m, self._speeds_of(candidate).first)

    def _dense_on_first(self, candidate: Candidate) -> int:
        return dense_on_first_stage(self._job, self._memories, candidate) if self._first_dense else 0

    def _speeds_of(self, candidate: Candidate) -> CandidateSpeeds:
        c, num_ranks = candidate, candidate.num_ranks if self._fleet.shares_cores else 1
        alike = self._first_dense > 0 and self._dense_on_first(c) < self._first_dense
        like = Candidate(c.tp, 1, 1, c.micro_batch_size, c.recompute, "1f1b", c.weight_shards)
        return self._speeds(like, num_ranks, alike)

    def _read_speeds(self, like: Candidate, num_ranks: int, alike: bool) -> CandidateSpeeds:
        """Return the speeds; if `alike`, of the faster kind of layer on each class."""
        execution = like.execution(self._job)
        classes, layers, heads_s, dense = list[ClassSpeed](), list[PassTimes](), list[float](), list[float]()
        for each in self._fleet.classes:
            layer, head = slot_s(self._job, each.hardware.slot.among(num_ranks), execution)
            layer = least_traffic(self._job, like, each).under(layer)
            layer_s = layer.both_s
            if self._job.model.first_dense_layers:
                dense_s = dense_layer_s(self._job, execution, each.hardware.slot.among(num_ranks)).both_s
                layer_s = min(layer_s, dense_s) if alike else layer_s
                dense.append(dense_s / layer_s if layer_s else 1.0)
            classes.append(ClassSpeed(layer_s, each.num_group_slots(like.tp), each.cluster))
            layers.append(layer)
            heads_s.append(head.both_s)
        return CandidateSpeeds(tuple(sorted(classes)), layers[0], min(heads_s), max(heads_s), min(dense, default=1.0))

    def _read_fewest_stages(self, one_stage: Candidate) -> int:
        """Return a lower bound on the number of stages, from the number of layers that the largest memory holds."""
        execution = one_stage.execution(self._job)
        memories = [each.hardware.memory_bytes for each in self._fleet.classes]
        known = [memory for memory in memories if memory is not None]
        if len(known) < len(memories):
            return 1
        taken = execution.reserve_bytes + whole_layers_bytes(self._job.model, execution, False, False)
        held = max(0, max(known) - taken) // more_layer_bytes(self._job.model, execution)
        return -(-self._num_layers // held) if held else self._num_layers + 1


def more_stages(group_slots: Iterable[tuple[Hashable, int]], dp: int, mixed: bool) -> Iterator[int]:
    """Yield how many more stages each class, given as (cluster, slots) and fastest first, makes possible.

    A stage takes `dp` group slots from one cluster; with `mixed`, from all clusters.
    """
    together: dict[Hashable, int] = {}
    for cluster, count in group_slots:
        key = None if mixed else cluster
        before = together.get(key, 0)
        together[key] = before + count
        yield together[key] // dp - before // dp
