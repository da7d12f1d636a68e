"""One placement simulated at the level of classes of hosts, under any schedule that its memory allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from math import inf

from holmes_core.records.job import Job
from holmes_runtime.config.codec import Codec
from holmes_runtime.config.schedule import ScheduleName
from planner.cost.counts import edge_bytes, tied_bytes
from planner.cost.engines import engine_of
from planner.cost.fill import splits_backwards
from planner.cost.packing import allowed_codecs, lossiest_codec
from planner.cost.trained import dense_layers
from planner.problem.coefficients import Coefficients, are_alike
from planner.problem.exchange_rates import Site, around_latency_s
from planner.problem.problem import Problem
from planner.schedule.buckets import BucketSeconds
from planner.schedule.class_exchanges import ClassExchanges
from planner.schedule.run_mode import CHUNKS, SIMPLEST, RunMode, StepParts
from planner.schedule.simulate import PipelineTimes, ReplicaSchedule, simulate
from planner.schedule.step_lower_bound import least_step_s
from planner.schedule.step_seconds import (
    Exchange,
    RankSeconds,
    ReplicaSeconds,
    gradient_buckets,
    hiding_depths,
    slowest_update_s,
    with_experts,
)
from planner.search.closed_form import Edge, Ports, edge_of, least_pass, nic_use, shared_wires_s
from planner.search.placement import Placement, even_shares
from planner.tolerances import ROUNDING

NEVER_TRIED = ("gpipe",)  # unless fixed: `eager` does the same in less memory
MAX_KEPT = 2048  # simulators of a problem, each with its computed seconds
MAX_AHEAD = 16  # with no more micro-batches than this, all are also tried ahead at once


class PlacementSimulator:
    """One placement in class-level seconds, under any schedule."""

    def __init__(self, job: Job, coeffs: Coefficients, placement: Placement) -> None:
        self._job, self._coeffs, self._placement = job, coeffs, placement
        self._execution = placement.candidate.execution(job)
        self._pp = placement.candidate.pp
        self._sites = [tuple(sorted(set(row))) for row in placement.sites]
        self._buckets, self._times = cache(self._read_buckets), cache(self._read_times)
        self._update_s, self._bound_s = cache(self._read_update_s), cache(self._read_lower_bound_s)
        self._paced_s = cache(self._read_paced_s)
        self._simulated_s, self._fullest_share = cache(self._read_simulated_s), cache(self._read_fullest_share)

    def busiest_s(self, layers: tuple[int, ...]) -> float:
        """Return the seconds the busiest rank computes, under any schedule; `layers` are by stage."""
        return max(count * max(replica.work_s(layers)) for count, replica in self._lanes)

    @cached_property
    def least_s(self) -> float:
        """A lower bound on the step under any schedule, in seconds, without examining each one.

        A rank begins once another micro-batch has passed the ranks before it, whose backwards follow its last one. The
        slowest edge carries a message of every micro-batch. Only the first and last micro-batch hide exchanges, or the
        first and last round if ranks hold several stages.
        """
        return min(map(self._least_s, self._cuts))

    @property
    def paced_s(self) -> float:
        """A lower bound like `least_s` but without exchanges, so never more."""
        return min(map(self._paced_s, self._cuts))

    @cached_property
    def _cuts(self) -> list[tuple[int, ...]]:
        """The layers by stage under all schedules. If all layers are alike, only each rank's total matters."""
        layers, chunked = self._placement.layers, list[tuple[int, ...]]()
        if self._job.model.first_dense_layers and "interleaved" in self._names:
            chunked = [mode.layers for mode in self._interleaved()]
        return chunked if chunked and self._names == ("interleaved",) else [layers, *chunked]

    def may_take_less(self, within_s: float) -> bool:
        """Return True if `least_s` is below `within_s`; exchanges are ignored if they do not matter."""
        return self.paced_s < within_s and self.least_s < within_s

    def _least_s(self, layers: tuple[int, ...]) -> float:
        exchanged_s = self._exchanged_s(layers) * (1 - ROUNDING) + self._after_s(layers)
        return max(exchanged_s, self._paced_s(layers))

    def _read_paced_s(self, layers: tuple[int, ...]) -> float:
        """Return the same bound without exchanges."""
        found_s = 0.0
        for count, replica in self._lanes:
            before_s = 0.0
            edges_s = [*(edge.busy_s for edge in replica.forward_edges[:-1]), 0.0]
            firsts_s = map(sum, replica.compute_s(layers))  # the stages of ranks' first chunks
            fill = self._least_fill if len(layers) == self._pp else 1.0
            for work_s, first_s, edge_s in zip(replica.work_s(layers), firsts_s, edges_s, strict=False):
                found_s = max(found_s, fill * before_s + count * max(work_s, edge_s))
                before_s += first_s
        return found_s * (1 - ROUNDING) + self._after_s(layers)

    @cached_property
    def _least_fill(self) -> float:
        """The least part of a rank's work on a micro-batch that the next rank waits for; see any_schedule_bound.py."""
        fixed = self._job.parallel
        if (self.may_split and "zero-bubble" in self._names) or (fixed.chunks is not None and fixed.layers is not None):
            return 0.0
        interleaves = "interleaved" in self._names and all(count % self._pp == 0 for count, _ in self._lanes)
        return 1 / (fixed.chunks or CHUNKS[-1]) if interleaves else 1.0

    def _exchanged_s(self, layers: tuple[int, ...]) -> float:
        """Return a lower bound on the slowest exchange plus the work that never hides any of it."""
        candidate = self._placement.candidate
        if candidate.dp == 1:
            return 0.0
        hiding = self._pp if "interleaved" in self._names else 1
        count = max(0, min(count for count, _ in self._lanes) - hiding)
        lanes = [lane.work_s(layers) for _, lane in self._lanes]
        found_s, unlike = 0.0, set[object]()  # most of many ranks are alike
        dense = dense_layers(self._job.model, layers)
        for rank, exchange in enumerate(self._exchanges):
            work_s, held = min(lane[rank] for lane in lanes), layers[rank :: self._pp]
            kind = exchange, sum(held), sum(dense[rank :: self._pp]), rank == 0, rank == self._pp - 1, work_s
            if kind in unlike:
                continue
            unlike.add(kind)
            part = self._rank(self._sites[rank], self._sites[rank]).expert_part
            each = exchange(candidate.weighed_parameters(self._job, layers, rank, part))
            moved_s = max(each.reduce_s + each.gather_s, each.across_reduce_s + each.across_gather_s)
            found_s = max(found_s, moved_s + count * work_s)
        return found_s

    def modes(self) -> list[RunMode]:
        """Return the modes that job.yaml and memory allow, each with the lower bound on its step."""
        return [self.bounded(mode) for mode in self.allowed_modes() if self.fits(mode)]

    def bounded(self, mode: RunMode) -> RunMode:
        """Return `mode` with the lower bound on its step."""
        return mode._replace(step_s=self.lower_bound_s(mode))

    def timed(self, mode: RunMode, within_s: float = inf) -> RunMode:
        """Return `mode` with its simulated seconds; above `within_s` they may omit the cost of shared ports."""
        run = mode._replace(step_s=0.0)
        step_s = self._simulated_s(run, False)
        if step_s <= within_s and any(each.shared is not None for each in self._times(mode.layers, True)):
            step_s = self._simulated_s(run, True)
        return mode._replace(step_s=step_s)

    def _read_simulated_s(self, mode: RunMode, shares_ports: bool) -> float:
        """Return the simulated seconds of `mode`; unless it `shares_ports`, each edge has every port to itself."""
        pipelines = self._pipelines(mode)
        if not shares_ports:
            pipelines = [each.without_sharing() for each in pipelines]
        return simulate(pipelines, self._buckets(mode.layers)) + self._after_s(mode.layers)

    @cached_property
    def _lanes(self) -> list[tuple[int, ReplicaSeconds]]:
        """The micro-batches and seconds of each lane; see closed_form.py."""
        columns: dict[tuple[int, ...], int] = {}
        for column, count in zip(zip(*self._placement.sites, strict=True), self._placement.microbatches, strict=True):
            columns[column] = max(count, columns.get(column, 0))
        if all(len(set(column)) == 1 for column in columns):
            return [(count, self._replica([(c,) for c in column])) for column, count in columns.items()]
        return [(max(self._placement.microbatches), self._replica(self._sites))]

    def _replica(self, sites: Sequence[Site]) -> ReplicaSeconds:
        hosts = self._hosts(sites)
        ends = [*pairwise(hosts), (hosts[-1], hosts[0])]
        forward = [self._edge(before, after) for before, after in ends]
        backward = [
            self._with_ports(edge, after, before) if edge.ports else edge
            for edge, (before, after) in zip(forward, ends, strict=True)
        ]
        ranks = [self._rank(site, sharers) for site, sharers in zip(sites, self._sites, strict=True)]
        return ReplicaSeconds(ranks, forward, backward)

    def _rank(self, site: Site, sharers: Site) -> RankSeconds:
        """Return the seconds of one micro-batch at the pace of the site's slowest class.

        `sharers`: the classes of all replicas of the stage, which share its weights under ZeRO-3.
        """
        coeffs = self._coeffs
        slowest = max(site, key=lambda c: coeffs.layer_s[c])
        action_s = max(coeffs.action_s[c] for c in site)
        layer = coeffs.layer[slowest].no_less_than(least_pass(coeffs, sharers))
        seconds = RankSeconds(layer, coeffs.head[slowest], action_s)
        if self._job.model.experts is None:
            return seconds
        dense = coeffs.dense[slowest] if coeffs.dense else None
        return with_experts(seconds, self._job, self._execution, coeffs.slots[slowest], dense)

    def _hosts(self, sites: Sequence[Site]) -> list[tuple[Site, int]]:
        """Return the host of each rank: its site, and its number among the hosts there."""
        seen, found = Counter[Site](), list[tuple[Site, int]]()
        for site in sites:
            per_host = self._coeffs.stages_per_host[site[0]] if len(site) == 1 else 1
            found.append((site, seen[site] // per_host))
            seen[site] += 1
        return found

    def _with_ports(self, edge: Edge, sender: tuple[Site, int], receiver: tuple[Site, int]) -> Edge:
        """Return the edge with its NICs, trunk and uplinks."""
        coeffs, site, other = self._coeffs, sender[0], receiver[0]
        out_nic, in_nic = nic_use(coeffs, site, other), nic_use(coeffs, other, site)
        ports: Ports = (((sender, out_nic.name, "out"), out_nic.use_s), ((receiver, in_nic.name, "in"), in_nic.use_s))
        sending = frozenset(coeffs.cluster[c] for c in site)
        for name, use_s in shared_wires_s(coeffs, site, other).items():
            is_out = name[0] == sending if len(name) > 1 else name[0] in sending  # a trunk's, or an uplink's
            ports = (*ports, ((*name, is_out), use_s))
        return edge._replace(ports=ports)

    def _edge(self, sender: tuple[Site, int], receiver: tuple[Site, int]) -> Edge:
        """Return one message, with the lossiest codec that job.yaml allows if it crosses the shared network."""
        before, after = sender[0], receiver[0]
        if sender == receiver:
            inside = self._coeffs.slots[before[0]].inside
            size = edge_bytes(self._job.model, self._execution)
            return Edge(size / inside.bandwidth_bytes_per_s, inside.latency_s)
        codec = "none" if are_alike(self._coeffs, (*before, *after)) else lossiest_codec(self._job)
        edge = edge_of(self._coeffs, before, after)._replace(codec=codec)
        return self._with_ports(edge, sender, receiver)

    def allowed_modes(self, eager: bool = True) -> Iterator[RunMode]:
        """Yield the modes that job.yaml allows, even if they exceed memory; their bounds are not computed yet."""
        layers = self._placement.layers
        for name in self._names:
            if name == "interleaved":
                yield from self._interleaved()
            elif name == "eager":
                yield from (RunMode(name, 1, extra, layers, 0.0) for extra in (self._extras() if eager else ()))
            elif name != "zero-bubble" or self.may_split:
                yield RunMode(name, 1, (), layers, 0.0)

    @cached_property
    def _names(self) -> tuple[ScheduleName, ...]:
        """The schedules that job.yaml and the engine allow."""
        fixed = self._job.parallel
        if fixed.chunks is not None and fixed.chunks > 1:
            return ("interleaved",)
        names = (fixed.schedule,) if fixed.schedule else tuple(name for name in SIMPLEST if name not in NEVER_TRIED)
        return tuple(name for name in names if name in engine_of(self._job).schedules)

    @property
    def may_split(self) -> bool:
        """Return True if backwards may be run in halves."""
        execution = self._execution
        return splits_backwards(self._job, self._pp, execution.recompute, execution.weight_shards)

    def _interleaved(self) -> Iterator[RunMode]:
        """Yield modes with each rank's layers in chunks as even as possible; micro-batches must fill rounds of pp."""
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

        There are as many as hide messages under every allowed codec: depth loses nothing, so it comes before a codec.
        Also one more, or all if there are few: micro-batches ahead keep links busy while the pipeline fills.
        """
        if self._pp == 1:
            return [()] if self._job.parallel.schedule == "eager" else []
        _, replica = self._lanes[0]
        stages = replica.compute_s(self._placement.layers)
        edges = replica.forward_edges[:-1]
        depths = [hiding_depths(stages, self._packed(edges, codec)) for codec in allowed_codecs(self._job)]
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

    def _packed(self, edges: Sequence[Edge], codec: Codec) -> list[Edge]:
        """Return the edges with messages in `codec` instead of the lossiest one that job.yaml allows."""
        sizes = [edge_bytes(self._job.model, self._execution, each) for each in (codec, lossiest_codec(self._job))]
        ratio = sizes[0] / sizes[1]
        return [edge if edge.codec == "none" else edge._replace(busy_s=edge.busy_s * ratio) for edge in edges]

    def fits(self, mode: RunMode) -> bool:
        """Return True if every rank's memory holds the micro-batches that the schedule keeps."""
        return self.fullest_share(mode) <= 1

    def fullest_share(self, mode: RunMode) -> float:
        """Return the part of its memory that the fullest rank needs; 0 if no memory is known."""
        return self._fullest_share(mode._replace(step_s=0.0))

    def _read_fullest_share(self, mode: RunMode) -> float:
        count = max(self._placement.microbatches)
        needed_bytes = mode.rank_memory_bytes(self._job.model, self._execution, self._pp, count)
        rooms = zip(needed_bytes, self._room_bytes, strict=True)
        return max(0.0 if room is None else needed / room for needed, room in rooms)

    @cached_property
    def _room_bytes(self) -> list[int | None]:
        """The least memory on each pipeline rank's site; None if it is not known."""
        known = [[memory for c in site if (memory := self._coeffs.memory_bytes[c]) is not None] for site in self._sites]
        return [min(each, default=None) for each in known]

    def lower_bound_s(self, mode: RunMode) -> float:
        """Return a lower bound on the step of `mode`, in seconds."""
        return self._bound_s(mode._replace(step_s=0.0))

    def _read_lower_bound_s(self, mode: RunMode) -> float:
        buckets = self._buckets(mode.layers)
        return max(least_step_s(pipeline, buckets) for pipeline in self._pipelines(mode)) + self._after_s(mode.layers)

    def _after_s(self, layers: tuple[int, ...]) -> float:
        """Return the seconds after all gradients: the sum over copies of a tied table, the sum of the norm (down
        pipelines, back up, and around replicas), and the update."""
        pipelines_s = max(replica.latency_s for _, replica in self._lanes)
        around_s = max(around_latency_s(self._coeffs, site) for site in self._sites)
        norm_s = 2 * pipelines_s + 2 * around_s
        return norm_s + self._tied_s + self._update_s(layers)

    @cached_property
    def _tied_s(self) -> float:
        """Seconds of the sum over copies of a tied table, as a message between the ends of the pipeline."""
        model, execution = self._job.model, self._execution
        if not model.tied_embeddings or self._pp == 1:
            return 0.0
        if not tied_bytes(model, execution):
            return 0.0
        edge = edge_of(self._coeffs, self._sites[0], self._sites[-1])
        messages = tied_bytes(model, execution) / edge_bytes(model, execution, lossiest_codec(self._job))
        return messages * edge.busy_s + edge.latency_s

    def _read_update_s(self, layers: tuple[int, ...]) -> float:
        """Return the seconds of the slowest rank's update."""
        slots = [[self._coeffs.slots[c] for c in site] for site in self._sites]
        return slowest_update_s(self._job, self._placement.candidate, self._execution, layers, slots)

    def parts(self, mode: RunMode) -> StepParts:
        """Return the parts of the step's seconds."""
        pipelines = self._pipelines(mode)
        without_gradients_s = simulate(pipelines)
        gradients_s = simulate(pipelines, self._buckets(mode.layers)) - without_gradients_s
        edges_s = without_gradients_s - simulate(self._pipelines(mode, messages=False))
        layers = mode.layers if self._job.model.first_dense_layers else self._placement.layers
        busiest_s, update_s = self.busiest_s(layers), self._update_s(mode.layers)
        bubble_s = mode.step_s - busiest_s - edges_s - gradients_s - update_s
        return StepParts(busiest_s, bubble_s, edges_s, gradients_s, update_s)

    def _pipelines(self, mode: RunMode, messages: bool = True) -> list[ReplicaSchedule]:
        """Return one pipeline per lane; without `messages` they take no time."""
        times = self._times(mode.layers, messages)
        counts = [count for count, _ in self._lanes]
        return [ReplicaSchedule(mode.order(self._pp, count), each) for count, each in zip(counts, times, strict=True)]

    def _read_times(self, layers: tuple[int, ...], messages: bool) -> list[PipelineTimes]:
        """Return the seconds of each lane if stages hold `layers`."""
        return [replica.times(self._job, self._execution, layers, messages) for _, replica in self._lanes]

    def _read_buckets(self, layers: tuple[int, ...]) -> list[list[BucketSeconds]]:
        """Return the gradient buckets by stage if stages hold `layers`; none with one replica."""
        if self._placement.candidate.dp == 1:
            return []
        ranks = [self._rank(site, site) for site in self._sites]
        return gradient_buckets(self._job, self._placement.candidate, layers, ranks, self._exchanges)

    @cached_property
    def _exchanges(self) -> list[Exchange]:
        """The exchange of each pipeline rank, the same object for equal ones."""
        is_one_lane = len(self._lanes) == 1
        return ClassExchanges(self._job, self._coeffs, self._placement, self._sites, is_one_lane).by_rank()


def simulator_of(problem: Problem, placement: Placement) -> PlacementSimulator:
    """Return the simulator of `placement`. Recent ones are kept, since contenders and climbs often meet them again."""
    return problem.once(_simulators)(placement)


def _simulators(problem: Problem) -> Callable[[Placement], PlacementSimulator]:
    @lru_cache(maxsize=MAX_KEPT)
    def make(placement: Placement) -> PlacementSimulator:
        return PlacementSimulator(problem.job, problem.coefficients(placement.candidate), placement)

    return make
