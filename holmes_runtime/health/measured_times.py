"""Measurements of all ranks, and the seconds of a step's pipeline that follow from them. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from holmes_runtime.config.codec import EdgeSettings, with_packing
from holmes_runtime.config.rank_grid import EDGE_AXES, Axis, Group
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.schedule import DEEPENED, make_schedule
from holmes_runtime.health.pipeline_seconds import MeasuredPipeline, pipeline_s

MAX_SIMULATED = 64  # micro-batches of a step, and at most a round of pp more


class EdgeTime(NamedTuple):
    """Seconds from requesting a message to its arrival: one of a few bytes, and a full one as packed in the run."""

    small_s: float
    full_s: float

    def shortened(self, ratio: float) -> EdgeTime:
        return EdgeTime(self.small_s / ratio, self.full_s / ratio)


@dataclass(frozen=True)
class Measured:
    """Median seconds: of a micro-batch's compute by rank, and of messages by the name of their edge's group.

    `reading_s` are the seconds by rank that a step waited for its samples, and `step_s` the seconds of a whole step.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    edges: dict[str, EdgeTime]
    reading_s: tuple[float, ...] = ()
    step_s: float = 0.0

    def compute_s(self, rank: int) -> float:
        """Return the seconds of forward and backward of one micro-batch."""
        return self.forward_s[rank] + self.backward_s[rank]

    def with_edges(self, edges: Mapping[str, EdgeTime]) -> Measured:
        return replace(self, edges={**self.edges, **edges})


@dataclass(frozen=True)
class _Wire:
    """One direction of a replica's edge: its latency, and the seconds that each byte keeps it busy."""

    latency_s: float
    s_per_byte: float


class StepEstimate:
    """The seconds of a step's pipeline under other edge settings, from measurements under `config`.

    Of each stage the slowest shard counts, and of all replicas the slowest.
    """

    def __init__(self, config: RunConfig, measured: Measured) -> None:
        self._config, self._measured = config, measured
        self._by_edge: dict[tuple[int, Axis, int], list[Group]] = {}
        for group in config.groups:
            if group.axis in EDGE_AXES:
                first = config.grid.rank(group.ranks[0])
                self._by_edge.setdefault((first.dp_rank, group.axis, first.pp_rank), []).append(group)

    @cached_property
    def stage_s(self) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
        """The forward and backward seconds of a micro-batch, by replica and stage."""
        return [
            (self._by_stage(self._measured.forward_s, replica), self._by_stage(self._measured.backward_s, replica))
            for replica in range(self._config.dp)
        ]

    def step_s(self, settings: Sequence[EdgeSettings]) -> float:
        """Return the seconds of a step's pipeline with these edge settings, by earlier pipeline rank."""
        return max(self._replica_s(replica, settings) for replica in range(self._config.dp))

    def round_s(self, settings: Sequence[EdgeSettings]) -> float:
        """Return the seconds that pp more micro-batches add: the pace of the full pipeline."""
        pp = self._config.pp
        many = max(2, MAX_SIMULATED // pp) * pp
        return max(
            self._simulated_s(replica, settings, many) - self._simulated_s(replica, settings, many - pp)
            for replica in range(self._config.dp)
        )

    def trip_s(self, edge: int, packed: EdgeSettings) -> float:
        """Return the seconds of a message of activations plus one of gradients on that edge, in the slowest replica."""
        return max(
            sum(latency_s + busy_s for latency_s, busy_s in self._messages(replica, edge, packed))
            for replica in range(self._config.dp)
        )

    def busy_s(self, edge: int, packed: EdgeSettings) -> float:
        """Return the seconds between two messages on that edge, in the slower direction of the slowest replica."""
        return max(busy_s for replica in range(self._config.dp) for _, busy_s in self._messages(replica, edge, packed))

    def _replica_s(self, replica: int, settings: Sequence[EdgeSettings]) -> float:
        """Simulate some rounds of pp micro-batches. Each further round takes as long as the last of these."""
        count, pp = self._config.microbatches[replica], self._config.pp
        rounds_left_out = (count - MAX_SIMULATED) // pp
        if rounds_left_out <= 0:
            return self._simulated_s(replica, settings, count)
        long_s, short_s = (self._simulated_s(replica, settings, count - (rounds_left_out + n) * pp) for n in (0, 1))
        return long_s + rounds_left_out * (long_s - short_s)

    def _simulated_s(self, replica: int, settings: Sequence[EdgeSettings], num_microbatches: int) -> float:
        config = self._config
        is_deepened = config.schedule in DEEPENED
        extra = [each.extra_in_flight for each in settings[: config.pp - 1]] if is_deepened else ()
        schedule = "eager" if is_deepened else config.schedule
        actions = make_schedule(schedule, config.pp, num_microbatches, config.chunks, extra)
        forward_s, backward_s = self._with_packing(replica, settings)
        wires = [self._messages(replica, edge, packed) for edge, packed in enumerate(settings)]
        return pipeline_s(actions, MeasuredPipeline(forward_s, backward_s, wires))

    def _with_packing(
        self, replica: int, settings: Sequence[EdgeSettings]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return forward and backward by stage, including packing and unpacking, which measured compute excludes."""
        config, stages = self._config, list(zip(*self.stage_s[replica], strict=True))
        codecs = [
            (settings[stage % config.pp].activations, settings[stage % config.pp].gradients)
            for stage in range(len(stages) - 1)
        ]
        return with_packing(config.device, math.prod(config.message_shape), stages, codecs)

    def _messages(self, replica: int, edge: int, packed: EdgeSettings) -> tuple[tuple[float, float], ...]:
        """Return the latency and busy seconds of a message of activations, and of one of gradients."""
        found = []
        for axis, codec in zip(EDGE_AXES, packed[:2], strict=True):
            wire = self._wires[replica, axis, edge]
            found.append((wire.latency_s, wire.s_per_byte * self._config.message_bytes(codec)))
        return tuple(found)

    @cached_property
    def _wires(self) -> dict[tuple[int, Axis, int], _Wire]:
        return {key: self._wire(groups) for key, groups in self._by_edge.items()}

    def _wire(self, groups: Sequence[Group]) -> _Wire:
        """Return the wire of the slowest shard."""
        timed = [(group, self._measured.edges[group.name]) for group in groups]
        return _Wire(
            latency_s=max(time.small_s for _, time in timed) / 2,  # the request took as long
            s_per_byte=max(
                max(0.0, time.full_s - time.small_s) / self._config.message_bytes(group.codec) for group, time in timed
            ),
        )

    def _by_stage(self, by_rank: Sequence[float], replica: int) -> tuple[float, ...]:
        """Return the measurements of a replica's ranks, divided among their stages by layers."""
        config = self._config
        found = []
        for stage in config.stages:
            pp_rank = stage.index % config.pp
            shards = [config.grid.at(pp_rank, replica, shard).rank for shard in range(config.tp)]
            layers = sum(each.stop_layer - each.first_layer for each in config.stages_of(pp_rank))
            share = (stage.stop_layer - stage.first_layer) / layers
            found.append(max(by_rank[rank] for rank in shards) * share)
        return tuple(found)
