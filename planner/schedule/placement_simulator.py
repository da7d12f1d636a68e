"""One placement simulated at the level of classes of hosts, under any schedule that its memory allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import pairwise
from math import ceil

from holmes_core.records.job import Codec, Job
from holmes_runtime.config.model_shape import Part, bucket_bytes, gradient_order, stage_parameters
from holmes_runtime.config.schedule import microbatches_in_flight
from planner.cost.collectives import exchange_hops, exchange_share, times_as_long
from planner.cost.compute_time import split_factor
from planner.cost.counts import edge_bytes, edge_values, memory_bytes
from planner.cost.engines import engine_of
from planner.cost.fill import splits_backwards
from planner.cost.packing import allowed_codecs, lossiest_codec, with_messages
from planner.problem.coefficients import Coefficients, are_alike
from planner.problem.exchange_rates import are_even, rings_on_nic, site_latency_s, sync_s_per_byte
from planner.schedule.buckets import WHOLE, BucketExchange, BucketSeconds, make_buckets
from planner.schedule.run_mode import SIMPLEST, RunMode, StepParts
from planner.schedule.simulate import PipelineTimes, ReplicaSchedule, ScheduleOrder, simulate
from planner.schedule.step_end import slowest_update_s, tied_s
from planner.schedule.step_lower_bound import Shape, least_step_s
from planner.search.closed_form import NO_EDGE, Edge, edge_of
from planner.search.placement import Placement, even_shares
from planner.tolerances import ROUNDING

NEVER_TRIED = ("gpipe",)  # unless it is fixed: `eager` does the same in less memory
CHUNKS = (2, 3, 4)  # tried where none are fixed
MAX_AHEAD = 16  # micro-batches that are all tried ahead where there are no more
ROUNDS = 3  # rounds of pp micro-batches simulated; more repeat the last one


class PlacementSimulator:
    """One placement in class-level seconds, under any schedule."""

    def __init__(self, job: Job, coeffs: Coefficients, placement: Placement) -> None:
        self._job, self._coeffs, self._placement = job, coeffs, placement
        self._execution = placement.candidate.execution(job)
        self._pp = placement.candidate.pp
        self._sites = [tuple(sorted(set(row))) for row in placement.sites]
        self._buckets = cache(self._read_buckets)

    @cached_property
    def busiest_s(self) -> float:
        """Seconds the busiest rank computes, under any schedule."""
        layers = self._placement.layers
        return max(count * max(map(sum, self._stage_s(sites, layers))) for count, sites in self._lanes)

    def modes(self) -> list[RunMode]:
        """Return the modes that job.yaml and memory allow, each with the lower bound on its step."""
        return [replace(mode, step_s=self.lower_bound_s(mode)) for mode in self.allowed_modes() if self.fits(mode)]

    def timed(self, mode: RunMode) -> RunMode:
        """`mode` with its simulated seconds.

        Of many micro-batches the middle is left out: in the steady state every round of pp is alike.
        """
        rounds = (min(count for count, _ in self._lanes) - 1) // self._pp - ROUNDS
        if rounds <= 1 or len(self._lanes) > 1:
            return replace(mode, step_s=self._simulate(mode, 0))
        short_s, shorter_s = self._simulate(mode, rounds), self._simulate(mode, rounds + 1)
        # What was left out may have been slower than what was not, and then the bound is nearer.
        return replace(mode, step_s=max(self.lower_bound_s(mode), short_s + rounds * (short_s - shorter_s)))

    @cached_property
    def _lanes(self) -> list[tuple[int, list[tuple[int, ...]]]]:
        """(micro-batches, sites by stage) of each lane; see closed_form.py."""
        columns: dict[tuple[int, ...], int] = {}
        for column, count in zip(zip(*self._placement.sites, strict=True), self._placement.microbatches, strict=True):
            columns[column] = max(count, columns.get(column, 0))
        if all(len(set(column)) == 1 for column in columns):
            return [(count, [(c,) for c in column]) for column, count in columns.items()]
        return [(max(self._placement.microbatches), self._sites)]

    def allowed_modes(self, eager: bool = True) -> Iterator[RunMode]:
        """Yield the modes that job.yaml allows, even if they exceed memory; their bounds are still to be computed."""
        fixed, layers = self._job.parallel, self._placement.layers
        names = (fixed.schedule,) if fixed.schedule else tuple(name for name in SIMPLEST if name not in NEVER_TRIED)
        names = tuple(name for name in names if name in engine_of(self._job).schedules)
        if fixed.chunks is not None and fixed.chunks > 1:
            names = ("interleaved",)
        for name in names:
            if name == "interleaved":
                yield from self._interleaved()
            elif name == "eager":
                yield from (RunMode(name, 1, extra, layers, 0.0) for extra in (self._extras() if eager else ()))
            elif name != "zero-bubble" or self.may_split:
                yield RunMode(name, 1, (), layers, 0.0)

    @property
    def may_split(self) -> bool:
        """Return True if backwards may be run in halves."""
        execution = self._execution
        return splits_backwards(self._job, self._pp, execution.recompute, execution.weight_shards)

    def _interleaved(self) -> Iterator[RunMode]:
        """Each rank's layers in chunks as even as can be; micro-batches must come in rounds of pp."""
        fixed, layers = self._job.parallel, self._placement.layers
        if self._pp == 1 or any(count % self._pp for count in self._placement.microbatches):
            return
        if fixed.layers is not None:
            if (fixed.chunks or 1) > 1:
                yield RunMode("interleaved", fixed.chunks or 1, (), fixed.layers, 0.0)
            return
        for chunks in (fixed.chunks,) if fixed.chunks else CHUNKS:
            if min(layers) >= chunks:
                parts = [even_shares(held, chunks) for held in layers]
                cut = tuple(part[i] for i in range(chunks) for part in parts)
                yield RunMode("interleaved", chunks, (), cut, 0.0)

    def _extras(self) -> list[tuple[int, ...]]:
        """Return extra micro-batches in flight on edges between clusters, and on all that take time, as memory allows.

        As many as hide messages by every codec that is allowed: depth loses nothing, so it comes before a codec. Also
        one more, or all where there are few: while a pipeline fills, micro-batches ahead keep links busy.
        """
        if self._pp == 1:
            return [()] if self._job.parallel.schedule == "eager" else []
        _, sites = self._lanes[0]
        stages = self._stage_s(sites, self._placement.layers)
        edges = self._edges(sites, 1)
        depths = [_depths(stages, self._packed(sites, edges, codec)) for codec in allowed_codecs(self._job)]
        wanted = [max(column) for column in zip(*depths, strict=True)]
        far = [len({self._coeffs.cluster[c] for c in (*a, *b)}) > 1 for a, b in pairwise(self._sites)]
        found: dict[tuple[int, ...], None] = {}
        few = max(self._placement.microbatches) - 1
        deeper = [min(few, k + 1) for k in wanted] if few > MAX_AHEAD else [few] * (self._pp - 1)
        for row in ([k * crosses for k, crosses in zip(wanted, far, strict=True)], wanted, deeper):
            for most in range(max(row), 0, -1):
                extra = tuple(min(k, most) for k in row)
                if self.fits(RunMode("eager", 1, extra, self._placement.layers, 0.0)):
                    found[extra] = None
                    break
        if not found and self._job.parallel.schedule == "eager":
            found[(0,) * (self._pp - 1)] = None
        return list(found)

    def _packed(self, sites: Sequence[tuple[int, ...]], edges: Sequence[Edge], codec: Codec) -> list[Edge]:
        """Return the edges if what crosses were packed so, and not as lossily as job.yaml allows."""
        sizes = [edge_bytes(self._job.model, self._execution, each) for each in (codec, lossiest_codec(self._job))]
        ratio = sizes[0] / sizes[1]
        return [
            edge if are_alike(self._coeffs, (*a, *b)) else edge._replace(busy_s=edge.busy_s * ratio)
            for edge, (a, b) in zip(edges, pairwise(sites), strict=True)
        ]

    def fits(self, mode: RunMode) -> bool:
        """Return True if every rank's memory holds the micro-batches that the schedule keeps."""
        return all(share <= 1 for share in self._memory_shares(mode))

    def fullest_share(self, mode: RunMode) -> float:
        """Return the part of its memory that the fullest rank needs; 0 where no memory is known."""
        return max(self._memory_shares(mode))

    def _memory_shares(self, mode: RunMode) -> Iterator[float]:
        """Yield, by pipeline rank, its needed memory over the least memory on its site; 0 where that is not known."""
        count = max(self._placement.microbatches)
        for rank, site in enumerate(self._sites):
            held = microbatches_in_flight(mode.schedule, self._pp, count, rank, mode.chunks, mode.extra_in_flight)
            is_first, is_last = rank == 0, rank == self._pp - 1
            needed = memory_bytes(
                self._job.model, self._execution, mode.layers[rank :: self._pp], held, is_first, is_last
            )
            known = [memory for c in site if (memory := self._coeffs.memory_bytes[c]) is not None]
            yield needed / min(known) if known else 0.0

    def lower_bound_s(self, mode: RunMode) -> float:
        """Return a lower bound on the step of `mode`, in seconds."""
        shapes = [Shape(mode.schedule, self._pp, count, mode.extra_in_flight) for count, _ in self._lanes]
        lanes = zip(shapes, self._times(mode), strict=True)
        return max(least_step_s(shape, times, self._buckets(mode.layers)) for shape, times in lanes) + self._after_s

    def _simulate(self, mode: RunMode, rounds_left_out: int) -> float:
        return simulate(self._pipelines(mode, rounds_left_out), self._buckets(mode.layers)) + self._after_s

    @cached_property
    def _after_s(self) -> float:
        """Seconds after all gradients: the sum over copies of a tied table, the norm's sum (down pipelines and back up,
        and around replicas), and the update."""
        pipelines_s = max(sum(edge.latency_s for edge in self._edges(sites, 1)) for _, sites in self._lanes)
        around_s = max(site_latency_s(self._coeffs, site) for site in self._sites)
        norm_s = 2 * pipelines_s + 2 * (self._placement.candidate.dp - 1) * around_s
        return norm_s + tied_s(self._job, self._execution, self._coeffs, self._sites) + self._update_s

    @cached_property
    def _update_s(self) -> float:
        """Seconds of the slowest rank's update."""
        return slowest_update_s(self._job, self._execution, self._coeffs, self._sites, self._placement.layers)

    def parts(self, mode: RunMode) -> StepParts:
        """Return the parts of its seconds; the seconds that links add come from shortened simulations."""
        left_out = max(0, (min(count for count, _ in self._lanes) - 1) // self._pp - ROUNDS)
        pipelines = self._pipelines(mode, left_out)
        free = self._pipelines(mode, left_out, messages=False)
        without_gradients_s = simulate(pipelines)
        gradients_s = simulate(pipelines, self._buckets(mode.layers)) - without_gradients_s
        shortened = min(count for count, _ in self._lanes) - left_out * self._pp
        edges_s = (without_gradients_s - simulate(free)) * max(self._placement.microbatches) / shortened
        bubble_s = mode.step_s - self.busiest_s - edges_s - gradients_s - self._update_s
        return StepParts(self.busiest_s, bubble_s, edges_s, gradients_s, self._update_s)

    def _pipelines(self, mode: RunMode, rounds_left_out: int, messages: bool = True) -> list[ReplicaSchedule]:
        """Return one pipeline a lane, less so many rounds of pp micro-batches; without `messages` they take no time."""
        counts = [count - rounds_left_out * self._pp for count, _ in self._lanes]
        return [
            ReplicaSchedule(ScheduleOrder(mode.schedule, self._pp, count, mode.chunks, mode.extra_in_flight), times)
            for count, times in zip(counts, self._times(mode, messages), strict=True)
        ]

    def _times(self, mode: RunMode, messages: bool = True) -> list[PipelineTimes]:
        """Return the seconds of each lane's stages and edges."""
        found = []
        for _, sites in self._lanes:
            edges = self._edges(sites, mode.chunks)
            busy_s, late_s = (tuple(edge.busy_s for edge in edges), tuple(edge.latency_s for edge in edges))
            stages, factor = self._stage_s(sites, mode.layers), split_factor(self._job)
            alone_s = zip(*stages, strict=True)
            forward_s, backward_s = self._with_messages(stages, sites) if messages else alone_s
            times = PipelineTimes(forward_s, backward_s, busy_s, busy_s, split_factor=factor, latency_s=late_s)
            found.append(times if messages else times.without_edges())
        return found

    def _stage_s(self, sites: Sequence[tuple[int, ...]], layers: Sequence[int]) -> list[tuple[float, float]]:
        """Forward and backward of one micro-batch, by stage, at the pace of a site's slowest class."""
        coeffs, found = self._coeffs, []
        for stage, held in enumerate(layers):
            slowest = max(sites[stage % self._pp], key=lambda c: coeffs.layer_s[c])
            layer, head, is_last = coeffs.layer[slowest], coeffs.head[slowest], stage == len(layers) - 1
            forward_s = held * layer.forward_s + head.forward_s * is_last
            found.append((forward_s, held * layer.backward_s + head.backward_s * is_last))
        return found

    def _with_messages(
        self, stages: Sequence[tuple[float, float]], sites: Sequence[tuple[int, ...]]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Forward and backward by stage, with messages; what crosses the network that all share is packed."""
        values, codec = edge_values(self._job.model, self._execution), lossiest_codec(self._job)
        packed = [
            codec if not are_alike(self._coeffs, (*sites[s % self._pp], *sites[(s + 1) % self._pp])) else "none"
            for s in range(len(stages) - 1)
        ]
        slowest_s = [max(self._coeffs.action_s[c] for c in site) * (self._pp > 1) for site in sites]
        action_s = [slowest_s[stage % self._pp] for stage in range(len(stages))]
        return with_messages(self._job, values, stages, [(each, each) for each in packed], action_s)

    def _edges(self, sites: Sequence[tuple[int, ...]], chunks: int) -> list[Edge]:
        """One message by edge; between stages of one host it takes nothing."""
        coeffs, found = self._coeffs, list[Edge]()
        count: dict[tuple[int, ...], int] = {}
        for before, after in pairwise(sites):
            count[before] = count.get(before, 0) + 1
            per_host = coeffs.stages_per_host[before[0]] if len(before) == 1 else 1
            same_host = before == after and count[before] % per_host != 0
            found.append(NO_EDGE if same_host else edge_of(coeffs, before, after))
        back = edge_of(coeffs, sites[-1], sites[0])
        return [*found, back] * (chunks - 1) + found

    def _read_buckets(self, layers: tuple[int, ...]) -> list[list[BucketSeconds]]:
        """Return, by stage, its gradient buckets when stages hold `layers`; none with one replica."""
        if self._placement.candidate.dp == 1:
            return []
        return [self._stage_buckets(stage, layers) for stage in range(len(layers))]

    def _stage_buckets(self, stage: int, layers: Sequence[int]) -> list[BucketSeconds]:
        coeffs, tp, site = self._coeffs, self._placement.candidate.tp, self._sites[stage % self._pp]
        engine = engine_of(self._job)
        travels = engine.travels_bytes(self._execution.value_bytes)
        gather_part = travels[1] / sum(travels)
        rings = self._rings(stage % self._pp)
        share = exchange_share(coeffs.candidate.dp, self._job.device) if rings else 1.0
        is_even = are_even(coeffs.cluster[c] for c in self._placement.sites[stage % self._pp])
        per_byte = sync_s_per_byte(coeffs, site, rings, self._times_as_long[stage % self._pp], is_even) / share
        slowest = max(site, key=lambda c: coeffs.layer_s[c])

        latency_s, hops = site_latency_s(coeffs, site), exchange_hops(coeffs.candidate.dp, self._job.device)

        def exchange(parameters: int) -> BucketExchange:
            seconds = per_byte * (tp * sum(travels)) * parameters
            reduced_s, gathered_s = seconds * (1 - gather_part), seconds * gather_part
            found = BucketExchange(
                reduced_s + hops.reduce * latency_s, gathered_s + hops.gather * latency_s, hops.late * latency_s
            )
            return found if engine.gathers_first else found.all_reduced()

        backward_s: dict[Part, float] = {
            "head": coeffs.head[slowest].backward_s,
            "layer": coeffs.layer[slowest].backward_s,
        }
        parts = gradient_order(layers[stage], stage == 0, stage == len(layers) - 1)
        full_bytes = 0 if engine.overlaps_exchange else WHOLE  # sharded by layer
        if engine.overlaps_exchange and self._execution.weight_shards == 1:
            rank, held = stage % self._pp, sum(layers[stage % self._pp :: self._pp])
            full_bytes = bucket_bytes(stage_parameters(self._job.model, held, rank == 0, rank == self._pp - 1, tp))
        return make_buckets(self._job.model, tp, parts, backward_s, exchange, full_bytes)

    @cached_property
    def _times_as_long(self) -> list[float]:
        """By pipeline rank, how many times as long as alone its exchange takes of a trunk that others share."""
        sizes = [self._coeffs.sync_bytes(rank, held) for rank, held in enumerate(self._placement.layers)]
        crosses = [len({self._coeffs.cluster[c] for c in site}) > 1 for site in self._sites]
        longer = times_as_long([size for size, far in zip(sizes, crosses, strict=True) if far])
        return [longer[size] if far else 1.0 for size, far in zip(sizes, crosses, strict=True)]

    def _rings(self, rank: int) -> int:
        """Dp groups at once on a host's NIC."""
        row = self._placement.sites[rank]
        return rings_on_nic(self._coeffs, self._sites[rank], Counter(row) if len(self._lanes) > 1 else None)


def _depths(stages: Sequence[tuple[float, float]], edges: Sequence[Edge]) -> list[int]:
    """Return, by edge, the micro-batches in flight, beyond 1F1B's, that hide a round trip over it."""
    pace_s = max(*(f + b for f, b in stages), *(edge.busy_s for edge in edges))
    trips_s = [sum(stages[e]) + sum(stages[e + 1]) + 2 * (edge.busy_s + edge.latency_s) for e, edge in enumerate(edges)]
    return [max(0, ceil(trip_s / pace_s * (1 - ROUNDING)) - 2) if pace_s else 0 for trip_s in trips_s]
