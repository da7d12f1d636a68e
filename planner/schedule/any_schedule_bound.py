"""A lower bound on the simulated step of all placements of a job, under every schedule that it may run.

The search proves its answer in the closed form, which assumes how a pipeline fills and hides exchanges. This bound
counts only the parts that no schedule avoids. A replica runs m micro-batches, and rank r spends w_r seconds on the
forward and backward of one:

- Rank r begins once another micro-batch has passed the ranks before it, runs all of its own, and then those ranks have
  a backward to run: T >= phi (w_0 + ... + w_(r-1)) + m w_r. phi is 1 with one stage per rank, the forward's share of w
  if backwards are split, 1 / v with v chunks.
- All ranks together run every layer of every micro-batch, no faster than ZeRO-3 gathers its weights.
- If no class has room for a stage's replicas, their gradients and weights cross between different hosts. T is no less
  than that plus all but the first forward and the last backward, which may hide it; with chunks, all but p of each.
- If no cluster has room for all tensor groups, gradients or messages cross between clusters: crossing_bound.py.

Finally, the fastest rank with an average share of the layers updates it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache
from heapq import heapify, heappop
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

from holmes_runtime.config.model_shape import layer_parameters
from planner.cost.collectives import PassTimes
from planner.cost.fill import splits_backwards
from planner.cost.slot import Slot, dense_layer_s, update_s
from planner.cost.trained import layers_of
from planner.problem.candidates import Candidate
from planner.problem.coefficients import slot_s
from planner.problem.fleet import HostClass
from planner.problem.problem import Problem
from planner.problem.sharded_weights import least_traffic
from planner.schedule.crossing_bound import LayerSeconds, crossing_bound_s
from planner.schedule.run_mode import CHUNKS
from planner.search.early_bounds import EarlyBounds
from planner.time_left import TimeLeft
from planner.tolerances import ROUNDING

EXACT = 1e-6  # relative tolerance of the bisection for the least seconds that hold all layers
ONE_STAGE_A_RANK = (None, "1f1b", "gpipe", "eager")  # fixed schedule, or none, that runs whole backwards


class CumulativeSpeeds(NamedTuple):
    """By class, fastest first: seconds of a layer; group slots so far, and their layers per second. For all: the least
    seconds of a head, and the least share of the forward in a layer's seconds. Only classes with a group slot.
    """

    layer_s: tuple[float, ...]
    ends: tuple[int, ...]
    rates: tuple[float, ...]
    head_s: float
    forward_share: float
    dense: float = 1.0  # least seconds of a layer without experts over a layer with them

    def rate(self, number: int) -> float:
        """Return the layers per second of the `number` fastest group slots."""
        at = bisect_left(self.ends, number)
        if at == len(self.ends):
            return self.rates[-1]
        before, rate = (self.ends[at - 1], self.rates[at - 1]) if at else (0, 0.0)
        return rate + (number - before) / self.layer_s[at]

    def slowest_s(self, number: int) -> float:
        """Return the seconds of a layer on the slowest of the `number` fastest group slots."""
        return self.layer_s[min(bisect_left(self.ends, number), len(self.ends) - 1)]


class AnyScheduleBounds:
    """The lower bounds of a problem's candidates."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._job, self._fleet, self._early = problem.job, problem.fleet, problem.once(EarlyBounds)
        self._classes = problem.fleet.classes
        self._num_layers, self._batch_parts = problem.job.model.num_layers, problem.job.batch_parts
        self._speeds, self._work_s = cache(self._read_speeds), cache(self._read_work_s)

    def least_s(self, candidates: Iterable[Candidate], left: TimeLeft | None = None) -> float:
        """Return a lower bound on the predicted step of these candidates, for every placement and schedule.

        The bound is lower if no time is `left` to examine all of them.
        """
        least_s, waiting = inf, [(self.work_s(each), each) for each in dict.fromkeys(candidates)]
        heapify(waiting)
        while waiting and waiting[0][0] < least_s:
            if left is not None and left.is_over:
                return waiting[0][0]
            _, candidate = heappop(waiting)
            least_s = min(least_s, max(self.candidate_s(candidate, least_s), self.across_s(candidate)))
        return least_s

    def work_s(self, candidate: Candidate) -> float:
        """Return the seconds of all work on the fastest group slots, as if no rank waited."""
        c = candidate
        return self._work_s(Candidate(c.tp, c.pp * c.dp, 1, c.micro_batch_size, c.recompute, "1f1b", c.weight_shards))

    def _read_work_s(self, like: Candidate) -> float:
        slots, total = like.pp, self._microbatches(like)
        speeds = self._speeds_of(like)
        fastest_s = speeds.layer_s[0]
        if not fastest_s:
            return 0.0
        number = self._layers_of_work(speeds)
        if self._shares_cores(like):
            return total * (number * fastest_s + speeds.head_s) / slots
        return total * (number + speeds.head_s / speeds.slowest_s(slots)) / speeds.rate(slots)

    def _layers_of_work(self, speeds: CumulativeSpeeds) -> float:
        """Return the number of layers with experts that take no longer than all layers."""
        return self._num_layers + self._job.model.first_dense_layers * (speeds.dense - 1)

    def candidate_s(self, candidate: Candidate, within_s: float = inf) -> float:
        """Return the least seconds of a step of the candidate; computing stops once they exceed `within_s`."""
        speeds, execution = self._speeds_of(candidate), candidate.execution(self._job)
        fastest_s = speeds.layer_s[0] * min(1.0, speeds.dense)
        stage_layers = -(-self._num_layers // candidate.pp)
        job = self._job
        parameters = layers_of(job.model, job.trainable, stage_layers, candidate.tp, execution.ep).trained
        if job.model.first_dense_layers:
            parameters = min(parameters, stage_layers * layer_parameters(job.model.dense, candidate.tp))
        after_s = min(update_s(parameters, execution, self._slot(each, candidate.num_ranks)) for each in self._classes)
        exchange_s = stage_layers * self._crossing_s(candidate)
        if self._shares_cores(candidate) or not fastest_s:
            return (max(self.work_s(candidate), exchange_s) + after_s) * (1 - ROUNDING)
        m = candidate.num_microbatches(self._batch_parts)
        hiding = 1 if self._chunks(candidate) == 1 else candidate.pp
        exchanged_s = exchange_s + max(0, m - hiding) * stage_layers * fastest_s
        fill = self._fill_share(candidate)
        waited_s = max(self._filled_s(candidate, fill), exchanged_s)
        before_s = within_s / (1 - ROUNDING) - after_s
        if waited_s < before_s and not job.model.first_dense_layers:  # these leave no whole layers
            waited_s = max(waited_s, self._whole_layers_s(candidate, fill, before_s))
        return (waited_s + after_s) * (1 - ROUNDING)

    def _filled_s(self, candidate: Candidate, fill: float) -> float:
        """Return a bound for all group slots, fastest first: rank r works at most (1 - fill / m) ** r of the step."""
        speeds, dp, most = (
            self._speeds_of(candidate),
            candidate.dp,
            candidate.num_microbatches(self._batch_parts),
        )
        if len(speeds.ends) > 1:
            most = self._microbatches(candidate) - dp + 1  # of one replica if all others run one
        rates = pairwise(speeds.rate(rank * dp) for rank in range(candidate.pp + 1))
        together = sum((after - before) * (1 - fill / most) ** rank for rank, (before, after) in enumerate(rates))
        return self.work_s(candidate) * speeds.rate(candidate.pp * dp) / together

    def _whole_layers_s(self, candidate: Candidate, fill: float, within_s: float) -> float:
        """Return a bound for the busiest replica, on the fastest group slots only, with whole layers on each rank.

        It is at most `within_s`.
        """
        speeds, m = self._speeds_of(candidate), candidate.num_microbatches(self._batch_parts)
        layer_s = speeds.layer_s[0]

        def layers_within(seconds: float) -> int:
            held = 0
            for rank in range(candidate.pp):
                room_s = (seconds - fill * held * layer_s) / m - speeds.head_s * (rank == candidate.pp - 1)
                held += max(0, int(room_s / layer_s * (1 + ROUNDING)))
            return held

        if within_s < inf and layers_within(within_s) < self._num_layers:
            return within_s
        least_s = 0.0
        most_s = 2 * (m + candidate.pp) * (-(-self._num_layers // candidate.pp) * layer_s + speeds.head_s)
        while most_s - least_s > EXACT * most_s:
            middle_s = (least_s + most_s) / 2
            least_s, most_s = (least_s, middle_s) if layers_within(middle_s) >= self._num_layers else (middle_s, most_s)
        return least_s

    def _crossing_s(self, candidate: Candidate) -> float:
        """Return the seconds of a layer's exchange between different hosts; 0 if a class has room for all replicas."""
        if candidate.dp <= max(each.num_group_slots(candidate.tp) for each in self._classes):
            return 0.0
        return self._early.crossing_sync_s(candidate)

    def across_s(self, candidate: Candidate) -> float:
        """Return a bound from traffic that must cross clusters; 0 for a single cluster or sharded weights.

        It is not part of `candidate_s`, which selects contenders: the best crossing is wanted even if it is slow.
        """
        speeds, m = self._speeds_of(candidate), candidate.num_microbatches(self._batch_parts)
        fastest_s = speeds.layer_s[0] * min(1.0, speeds.dense)
        is_apart = len(self._fleet.cluster_names) > 1 and candidate.weight_shards == 1
        if not is_apart or not fastest_s or self._shares_cores(candidate):
            return 0.0
        kept = max(0, m - (1 if self._chunks(candidate) == 1 else candidate.pp))
        sync_s = self._early.crossing_sync_s(candidate) if candidate.dp > 1 else 0.0
        return crossing_bound_s(self._problem, candidate, LayerSeconds(m * fastest_s, sync_s + kept * fastest_s))

    def _fill_share(self, candidate: Candidate) -> float:
        """Return the least phi of the schedules that the candidate may run."""
        fixed, chunks = self._job.parallel, self._chunks(candidate)
        shares = [1.0] if fixed.schedule in ONE_STAGE_A_RANK and (fixed.chunks or 1) == 1 else []
        if chunks > 1:
            shares.append(1 / chunks if fixed.layers is None else 0.0)
        split = splits_backwards(self._job, candidate.pp, candidate.recompute, candidate.weight_shards)
        if split and fixed.schedule in (None, "zero-bubble"):
            shares.append(self._speeds_of(candidate).forward_share)
        return min(shares, default=1.0)

    def _chunks(self, candidate: Candidate) -> int:
        """Return the most stages that a rank may hold."""
        fixed, pp = self._job.parallel, candidate.pp
        if pp == 1 or fixed.schedule not in (None, "interleaved") or self._microbatches(candidate) % pp:
            return 1
        return fixed.chunks or max(1, min(CHUNKS[-1], self._num_layers // pp))

    def _microbatches(self, candidate: Candidate) -> int:
        """Return the micro-batches of all replicas."""
        return self._batch_parts // candidate.micro_batch_size

    def _shares_cores(self, candidate: Candidate) -> bool:
        """Return True if ranks compute faster while others wait. Then only the bound on all work together holds."""
        if not self._fleet.shares_cores:
            return False
        return any(self._slot(each, candidate.num_ranks).threads_per_core > 1 for each in self._classes)

    def _slot(self, hosts: HostClass, num_ranks: int) -> Slot:
        """Return a slot of those hosts with as few of the `num_ranks` ranks on its machine as possible."""
        slot = hosts.hardware.slot
        elsewhere = 0 if slot.cores is None else self._fleet.num_group_slots(1) - slot.cores.num_slots
        return slot.among(max(1, num_ranks - elsewhere))

    def _speeds_of(self, candidate: Candidate) -> CumulativeSpeeds:
        num_ranks = candidate.num_ranks if self._fleet.shares_cores else 1
        c = candidate
        like = Candidate(c.tp, 1, 1, c.micro_batch_size, c.recompute, "1f1b", c.weight_shards)
        return self._speeds(like, num_ranks)

    def _read_speeds(self, like: Candidate, num_ranks: int) -> CumulativeSpeeds:
        execution, seconds = like.execution(self._job), list[tuple[PassTimes, PassTimes]]()
        for each in self._classes:
            layer, head = slot_s(self._job, self._slot(each, num_ranks), execution)
            seconds.append((least_traffic(self._job, like, each).under(layer), head))
        dense = [1.0]
        if self._job.model.first_dense_layers:
            slots = [self._slot(each, num_ranks) for each in self._classes]
            dense = [
                dense_layer_s(self._job, execution, slot).both_s / layer.both_s if layer.both_s else 1.0
                for slot, (layer, _) in zip(slots, seconds, strict=True)
            ]
        counts: Sequence[int] = [each.num_group_slots(like.tp) for each in self._classes]
        classes = sorted((layer.both_s, count) for (layer, _), count in zip(seconds, counts, strict=True) if count)
        forward_shares = [layer.forward_s / layer.both_s for layer, _ in seconds if layer.both_s]
        layers_s, numbers = zip(*classes, strict=True)
        least_head_s = min(head.both_s for _, head in seconds)
        rates = accumulate(count / layer_s if layer_s else inf for layer_s, count in classes)
        least_share = min(forward_shares, default=0.0)
        return CumulativeSpeeds(
            layers_s, tuple(accumulate(numbers)), tuple(rates), least_head_s, least_share, min(dense)
        )
