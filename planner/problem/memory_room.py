"""Room in memory: the layers that fit on devices and hosts, and host memory for optimizer states and islands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from holmes_core.records.inventory import Host
from holmes_core.records.job import Job
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.schedule import microbatches_in_flight
from planner.cost.counts import GRADIENT_BYTES, MASTER_BYTES, MOMENT_BYTES, Execution
from planner.cost.fill import Fill
from planner.cost.rank_memory import memory_bytes
from planner.cost.slot import first_dense
from planner.cost.trained import dense_layers, stage_of

USABLE_SHARE = 0.8  # assumption: the rest is for the system, the page cache of the data, and processes
SLACK_BYTES = 4096  # of a rank's memory: more than the sum of its parts' rounding errors

Memory = tuple[int | None, int | None]
"""Bytes of a slot's device, and of the host memory it may use. None means no limit."""


class Degrees(Protocol):
    """The part of a candidate that memory depends on. Candidates themselves depend on this module."""

    @property
    def pp(self) -> int: ...

    @property
    def fill(self) -> Fill: ...

    def num_microbatches(self, batch_parts: int) -> int: ...

    def execution(self, job: Job) -> Execution: ...


def usable_host_bytes(host: Host) -> int | None:
    """Return the bytes of host memory that optimizer states may take; None if the host's memory is not known."""
    return None if host.memory_bytes is None else int(host.memory_bytes * USABLE_SHARE)


def host_bytes(
    model: ModelShape, execution: Execution, checkpoints: bool, num_layers: int, is_first: bool, is_last: bool
) -> int:
    """Return one rank's bytes of host memory; 0 if states are on the device and the rank is not in an island."""
    ends = is_first, is_last
    parameters = stage_of(model, execution.trainable, num_layers, ends, execution.tp, execution.ep)
    return host_state_bytes(parameters.trained, execution, checkpoints)


def host_bytes_by_rank(job: Job, execution: Execution, layers: Sequence[int]) -> tuple[int, ...]:
    """Return the host memory bytes by pipeline rank, for stages of `layers`; empty if none is needed."""
    if not execution.optimizer_offload and not execution.outer_bytes:
        return ()
    last, checkpoints = len(layers) - 1, job.checkpoint is not None
    return tuple(
        host_bytes(job.model, execution, checkpoints, held, rank == 0, rank == last) for rank, held in enumerate(layers)
    )


def host_state_bytes(parameters: int, execution: Execution, checkpoints: bool) -> int:
    """Return the bytes of host memory for a rank's optimizer states and for an island.

    With states in host memory: 1/dp of masters (4), moments (8), gradients (4) and weights in transit (v, unless they
    are the masters), and a copy of the first two (12) while a checkpoint is written. Islands: 1/dp of `outer_bytes`.
    Source: holmes_runtime.parallel.host_states.
    """
    sharded = execution.outer_bytes
    if execution.optimizer_offload:
        states = MASTER_BYTES + MOMENT_BYTES
        sharded += states * (2 if checkpoints else 1) + GRADIENT_BYTES
        sharded += execution.value_bytes if execution.value_bytes < MASTER_BYTES else 0
    return -(-parameters * sharded // execution.dp)


def stages_memory_bytes(job: Job, candidate: Degrees, layers: Sequence[int]) -> list[int]:
    """Return the bytes one rank of each stage needs under the candidate's `fill` if stages hold `layers`."""
    num_microbatches, execution = candidate.num_microbatches(job.batch_parts), candidate.execution(job)
    needed, dense, last = list[int](), dense_layers(job.model, layers), candidate.pp - 1
    for stage, number in enumerate(layers):
        held = microbatches_in_flight(candidate.fill, candidate.pp, num_microbatches, stage)
        ends = stage == 0, stage == last
        needed.append(memory_bytes(job.model, execution, (number,), held, *ends, (dense[stage],)))
    return needed


def dense_on_first_stage(job: Job, memories: Iterable[Memory], candidate: Degrees) -> int:
    """Return the number of layers without experts that the search assumes on the first stage: all, or none.

    It is none as in `first_dense`, and if some slot as first stage holds a few of them but not all: then the only cuts
    that fit may give the others to later stages.
    """
    dense, fixed = first_dense(job, candidate.pp), job.parallel.layers is not None
    if not dense or fixed or candidate.pp == 1:
        return dense
    rooms = _Rooms(job, candidate)
    return dense if all(not 0 < rooms.layers(each, rooms.kind(0), dense) < dense for each in set(memories)) else 0


def layer_room(job: Job, memories: Sequence[Memory], candidate: Degrees) -> tuple[tuple[int, ...], ...]:
    """Return the most layers by stage and class. Unknown memory means no limit.

    If the first stage is not assumed to hold all layers without experts, each later stage has at least as many of them
    as have no room before it.
    """
    rooms, rows = _Rooms(job, candidate), dict[tuple[object, ...], tuple[int, ...]]()
    by_stage, fixed, pp = list[tuple[int, ...]](), job.parallel.layers, candidate.pp
    unlike = set(memories)
    all_first = dense_on_first_stage(job, memories, candidate)
    left = job.model.first_dense_layers
    for stage in range(pp):
        dense = left if fixed is None else sum(dense_layers(job.model, fixed)[stage::pp])
        kind = rooms.kind(stage)
        key = (*kind, dense)
        if key not in rows:
            layers = {each: rooms.layers(each, kind, dense) for each in unlike}
            if stage == 0 and all_first:
                layers = {each: most if most >= all_first else 0 for each, most in layers.items()}
            rows[key] = tuple(layers[memory] for memory in memories)
        by_stage.append(rows[key])
        left = 0 if all_first else max(0, left - max(rows[key]))
    return tuple(by_stage)


class _Rooms:
    """The room for layers on each stage of a candidate.

    Bytes are linear in layers, and per layer in micro-batches held, apart from rounding by a few bytes: `SLACK_BYTES`.
    """

    def __init__(self, job: Job, candidate: Degrees) -> None:
        self._num_layers, self._candidate = job.model.num_layers, candidate
        self._num_microbatches = candidate.num_microbatches(job.batch_parts)
        self._parts = _memory_parts(job.model, candidate.execution(job), job.checkpoint is not None)

    def kind(self, stage: int) -> tuple[int, bool, bool]:
        """Return the micro-batches that the stage holds, and if it is the first and the last one."""
        pp = self._candidate.pp
        held = microbatches_in_flight(self._candidate.fill, pp, self._num_microbatches, stage)[0]
        return held, stage == 0, stage == pp - 1

    def layers(self, memory: Memory, kind: tuple[int, bool, bool], dense: int) -> int:
        """Return the most layers that a stage of that kind holds if the first `dense` have no experts."""
        (held, *ends), parts = kind, self._parts
        end = ends[0], ends[1]
        taken, layer = SLACK_BYTES + parts.empty[end] + held * parts.microbatch, parts.states + held * parts.activations
        host = parts.host_empty[end], parts.host_layer
        if not dense:
            return _most_layers(self._num_layers, zip(memory, ((taken, layer), host), strict=True))
        more = parts.more_states + held * parts.more_activations
        device = taken + parts.more_once, layer + more
        first = _most_layers(dense, zip(memory, (device, host), strict=True))
        if first < dense:
            return first
        device = taken + parts.more_once + dense * more, layer
        return max(dense, _most_layers(self._num_layers, zip(memory, (device, host), strict=True)))


def _most_layers(most: int, rooms: Iterable[tuple[int | None, tuple[int, int]]]) -> int:
    """Return the layers, at most `most`, that fit in all `rooms`: bytes available, bytes taken, and bytes per layer."""
    for room, (taken, per_layer) in rooms:
        if room is not None and per_layer:
            most = max(0, min(most, (room - taken) // per_layer))
    return most


@dataclass(frozen=True)
class _MemoryParts:
    """Bytes of a rank without layers, by (first, last); of a micro-batch, shared by its layers; of one layer; the extra
    bytes of each layer without experts, and those that any such layers add once; and of host memory."""

    empty: dict[tuple[bool, bool], int]
    microbatch: int
    states: int
    activations: int
    more_states: int
    more_activations: int
    more_once: int
    host_empty: dict[tuple[bool, bool], int]
    host_layer: int


@lru_cache(maxsize=4096)
def _memory_parts(model: ModelShape, execution: Execution, checkpoints: bool) -> _MemoryParts:
    """Return the parts of `memory_bytes`, which are the same for all pipeline degrees."""

    def needed(layers: int, held: int, is_first: bool = False, is_last: bool = False, dense: int = 0) -> int:
        return memory_bytes(model, execution, (layers,), (held,), is_first, is_last, (dense,))

    ends = [(first, last) for first in (False, True) for last in (False, True)]
    empty = {end: needed(0, 0, *end) for end in ends}
    host_empty = {end: host_bytes(model, execution, checkpoints, 0, *end) for end in ends}
    host_layer = host_bytes(model, execution, checkpoints, 1, False, False)
    microbatch, states = needed(0, 1) - empty[False, False], needed(1, 0) - empty[False, False]
    activations = needed(1, 1) - needed(1, 0) - microbatch
    more_states = more_activations = more_once = 0
    if model.first_dense_layers:
        more_states, both = (needed(2, held, dense=2) - needed(2, held, dense=1) for held in (0, 1))
        more_activations = both - more_states
        more_once = needed(1, 0, dense=1) - needed(1, 0) - more_states
    more = more_states, more_activations, more_once
    return _MemoryParts(empty, microbatch, states, activations, *more, host_empty, host_layer)
