"""The run configuration that every rank reads: frozen dataclasses and their strict JSON form. Free of torch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from holmes_runtime.config.checks import check, check_positive
from holmes_runtime.config.codec import BF16_BYTES, CODECS, Codec, Device, EdgeSettings, codecs_up_to, packed_bytes
from holmes_runtime.config.islands.island_training import IslandTraining
from holmes_runtime.config.model_shape import ModelShape, message_shape
from holmes_runtime.config.rank_grid import EDGE_AXES, Axis, DataParallel, Group, Rank, RankGrid, group_key
from holmes_runtime.config.run_settings import (
    BYTE_VALUES,
    VALUE_BYTES,
    CheckpointSettings,
    DataSettings,
    EmulationSettings,
    EvaluationSettings,
    Expectation,
    OptimizerSettings,
    OuterSync,
    Precision,
    ProfileSettings,
    Recompute,
    Zero,
    fp8_obstacle,
)
from holmes_runtime.config.schedule import Schedule, ScheduleName, make_schedule
from holmes_runtime.config.strict_json import parse
from holmes_runtime.config.trainable import Lora, broken_rule

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Stage:
    """Pipeline stage `index`, on pipeline rank index % pp, with layers first_layer to stop_layer - 1."""

    index: int
    first_layer: int
    stop_layer: int

    def __post_init__(self) -> None:
        rule = f"must be above first_layer {self.first_layer}"
        check("stop_layer", self.stop_layer, rule, self.stop_layer > self.first_layer)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The configuration of a run, as every rank reads it. Raises ValueError naming the key if it is inconsistent.

    Defaults exist only for optional parts of a run. `from_json` does not use them: each key must be in the file.

    `microbatches[i]` are the micro-batches of replica i per step. `cp` neighbouring replicas share each sequence:
    replica i has part i % cp, and all run micro-batches of the same samples. `chunks` are the stages on a pipeline
    rank. `extra_in_flight` has one number per edge for the schedule "eager" and is otherwise empty. With "hierarchical"
    `data_parallel`, gradients are summed first inside clusters and then across them. `ep` ranks of a stage share its
    experts: ep / tp neighbouring replicas, each with as many of them. `zero` is the stage of ZeRO: 1 shards optimizer
    states over replicas, 3 also weights and gradients over the ranks of one group on axis dp. With `optimizer_offload`,
    for stage 1 only, masters and moments are in host memory, where the CPU updates them. `value_type` is the precision
    of weights, activations and messages between stages; masters, moments and gradient sums are fp32. With `fp8`, layers
    multiply in FP8. With `lora`, for stage 1 only, adapters are trained and all other weights are frozen.

    `weights` is the folder of a published model on every host. A run that does not resume starts from it; with `lora`
    every run does. `expected_tokenizer` is the tokenizer that text needs if the model's tokens are not bytes, and None
    if they are or may be. With `from_scratch`, a run that resumes begins at step 1 if no folder holds a checkpoint.
    `resume_step` names the checkpoint to go back to. With `outer_sync` the run is an island.

    Limits for changing edges during a run: `lossiest_codec` is the lossiest codec allowed. `room_in_flight` are the
    micro-batches for which each pipeline rank has memory, empty if unknown.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    device: Device
    seed: int
    steps: int
    global_batch_size: int
    micro_batch_size: int
    microbatches: tuple[int, ...]
    pp: int
    dp: int
    tp: int = 1
    cp: int = 1
    ep: int = 1
    data_parallel: DataParallel = "flat"
    zero: Zero = 1
    schedule: ScheduleName
    chunks: int = 1
    extra_in_flight: tuple[int, ...] = ()
    room_in_flight: tuple[int, ...] = ()
    lossiest_codec: Codec
    recompute: Recompute = "none"
    optimizer_offload: bool = False
    lora: Lora | None = None
    value_type: Precision
    fp8: bool = False
    compile: bool
    model: ModelShape
    weights: str | None = None
    emulation: EmulationSettings | None
    data: DataSettings
    expected_tokenizer: str | None
    evaluation: EvaluationSettings | None = None
    checkpoint: CheckpointSettings | None = None
    profile: ProfileSettings | None = None
    resume: bool = False
    from_scratch: bool = False
    resume_step: int | None = None
    optimizer: OptimizerSettings
    outer_sync: OuterSync | None = None
    stages: tuple[Stage, ...]
    ranks: tuple[Rank, ...]
    groups: tuple[Group, ...]
    expectation: Expectation | None
    timeout_s: float
    threads_per_rank: int

    def __post_init__(self) -> None:
        rule = f"must be {SCHEMA_VERSION}"
        check("schema_version", self.schema_version, rule, self.schema_version == SCHEMA_VERSION)
        check_positive(self, "steps", "global_batch_size", "micro_batch_size", "pp", "dp", "tp", "cp", "ep", "chunks")
        check_positive(self, "timeout_s", "threads_per_rank")
        self._check_settings()
        self._check_batch()
        self._check_context()
        self._check_schedule()
        self._check_shards()
        self._check_experts()
        self._check_stages()
        self.grid.check_groups(self.groups)
        self._check_zero()
        self._check_lora()
        self._check_codecs()
        self._check_outer_sync()

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """Parse the configuration. Raises ValueError naming the key path and the wrong value."""
        return parse(cls, text)

    def to_json(self) -> str:
        """Return the JSON text that `from_json` parses to an equal configuration."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @property
    def reads_weights(self) -> bool:
        """True if ranks may read a published model: not in a rehearsal, nor if a checkpoint has all weights."""
        may_read = not self.resume or self.from_scratch or self.lora is not None
        return self.weights is not None and self.emulation is None and may_read

    @property
    def first_adapters(self) -> str | None:
        """The folder of adapters that ranks may start from; None in a rehearsal, and if a checkpoint must have them."""
        may_read = self.emulation is None and (not self.resume or self.from_scratch)
        return self.lora.adapters if self.lora is not None and may_read else None

    @property
    def world_size(self) -> int:
        """The number of ranks, pp * dp * tp."""
        return self.pp * self.dp * self.tp

    @cached_property
    def island(self) -> IslandTraining | None:
        """The training of an island; None for an ordinary run."""
        if self.outer_sync is None:
            return None
        tokens = self.global_batch_size * self.model.seq_length
        return IslandTraining(self.outer_sync, self.steps, tokens, self.world_size, self.timeout_s, self.data.tokenizer)

    @property
    def total_microbatches(self) -> int:
        """The micro-batches of all replicas per step. If replicas share sequences, each consists of parts."""
        return sum(self.microbatches)

    @property
    def message_shape(self) -> tuple[int, int, int]:
        """The shape of a message on a pipeline edge: (micro_batch_size, seq_length / (tp cp), hidden_size)."""
        return message_shape(self.model, self.micro_batch_size, self.tp * self.cp)

    def message_bytes(self, codec: Codec) -> int:
        """Return the bytes of one message on a pipeline edge, packed by `codec`."""
        return packed_bytes(codec, math.prod(self.message_shape), VALUE_BYTES[self.value_type])

    def codec_of(self, axis: Axis, edge: tuple[int, int] | None) -> Codec:
        """Return the codec of `edge`, given as the ranks of the earlier and the later stage; "none" without an edge."""
        if edge is None:
            return "none"
        return next(group.codec for group in self.groups if group.key == group_key(axis, edge))

    @property
    def allowed_codecs(self) -> tuple[Codec, ...]:
        """The codecs that edges may use, mildest first."""
        return codecs_up_to(self.lossiest_codec, VALUE_BYTES[self.value_type])

    @cached_property
    def edges_between_hosts(self) -> frozenset[int]:
        """The edges that leave a host in some replica, by earlier pipeline rank. Only their messages are packed."""
        crossing = (group for group in self.groups if group.axis in EDGE_AXES and self._leaves_host(group))
        return frozenset(self.grid.rank(group.ranks[0]).pp_rank for group in crossing)

    @cached_property
    def edge_settings(self) -> tuple[EdgeSettings, ...]:
        """The settings of every edge, by earlier pipeline rank. If replicas differ, the lossiest codec counts."""
        found: dict[tuple[Axis, int], Codec] = {}
        for group in self.groups:
            if group.axis in EDGE_AXES:
                key = group.axis, self.grid.rank(group.ranks[0]).pp_rank
                found[key] = max(found.get(key, "none"), group.codec, key=CODECS.index)
        edges = sorted({edge for _, edge in found})
        extra = (*self.extra_in_flight, *(0 for _ in edges))
        return tuple(EdgeSettings(found["pp_forward", e], found["pp_backward", e], extra[e]) for e in edges)

    def with_edge_settings(self, settings: Sequence[EdgeSettings]) -> RunConfig:
        """Return the same run with these edge settings. Edges inside a host are never packed."""
        extra = tuple(each.extra_in_flight for each in settings[: self.pp - 1])
        is_deeper = any(extra) and self.schedule == "1f1b"
        return replace(
            self,
            schedule="eager" if is_deeper else self.schedule,
            extra_in_flight=extra if is_deeper or self.extra_in_flight else (),
            groups=tuple(self._with_codec(group, settings) for group in self.groups),
        )

    def _with_codec(self, group: Group, settings: Sequence[EdgeSettings]) -> Group:
        if group.axis not in EDGE_AXES or not self._leaves_host(group):
            return group
        edge = settings[self.grid.rank(group.ranks[0]).pp_rank]
        return replace(group, codec=edge.activations if group.axis == "pp_forward" else edge.gradients)

    def _leaves_host(self, group: Group) -> bool:
        return len({self.grid.rank(rank).host for rank in group.ranks}) > 1

    @cached_property
    def grid(self) -> RankGrid:
        """The ranks by their coordinates. Raises ValueError if they do not fill the grid."""
        shape = self.pp, self.dp, self.tp, self.chunks > 1, self.model.tied_embeddings, self.data_parallel
        return RankGrid(*shape, self.ranks, self.cp, self.ep)

    def shards_weights(self, me: Rank) -> bool:
        """Return True if `me` keeps only a shard of its layers' weights. That needs a group on axis dp."""
        return self.zero == 3 and "dp" in self.grid.exchanges(me)

    def sample_numbers(self, dp_rank: int) -> range:
        """Return the numbers of the samples in the global batch that replica `dp_rank` trains on."""
        first = dp_rank - dp_rank % self.cp  # first of the replicas that share these samples
        start = self.micro_batch_size * sum(self.microbatches[:first]) // self.cp
        return range(start, start + self.micro_batch_size * self.microbatches[dp_rank])

    def stages_of(self, pp_rank: int) -> tuple[Stage, ...]:
        """Return the stages on pipeline rank `pp_rank`, in the order of their layers."""
        return self.stages[pp_rank :: self.pp]

    def schedule_of(self, dp_rank: int) -> Schedule:
        """Return the actions of replica `dp_rank` by pipeline rank."""
        return make_schedule(self.schedule, self.pp, self.microbatches[dp_rank], self.chunks, self.extra_in_flight)

    def _check_settings(self) -> None:
        vocab_size, fraction = self.model.vocab_size, self.data.validation_fraction
        rule = f"must be at least {BYTE_VALUES} for text read as bytes"
        check("model.vocab_size", vocab_size, rule, vocab_size >= BYTE_VALUES or not self.data.is_bytes)
        if self.evaluation is not None:
            check("data.validation_fraction", fraction, "must be above 0 for an evaluation", fraction > 0)
            self.evaluation.check_patience(self.emulation is not None, self.outer_sync is not None)
        balance = self.optimizer.router_balance
        rule = "must be 0 for a model without experts"
        check("optimizer.router_balance", balance, rule, not balance or self.model.experts is not None)
        documents, factory = self.data.documents, self.model.factory
        rule = "must be joined with model.factory: such a model does not get the ends of documents"
        check("data.documents", documents, rule, documents == "joined" or factory is None)
        expected = len(self.expectation.compute_s) if self.expectation is not None else 0
        rule = f"must be empty or one for each of {self.world_size} ranks"
        check("expectation.compute_s", expected, rule, expected in (0, self.world_size))
        rule = "must be false without a checkpoint folder"
        check("resume", self.resume, rule, self.checkpoint is not None or not self.resume)
        check("resume_step", self.resume_step, "must be null unless it resumes", self.resume or not self.resume_step)

    def _check_batch(self) -> None:
        counts, samples = self.microbatches, self.total_microbatches * self.micro_batch_size / self.cp
        rule = f"must be {self.dp} positive numbers, one for each of dp"
        check("microbatches", counts, rule, len(counts) == self.dp and min(counts) > 0)
        rule = f"must be micro_batch_size * sum(microbatches){' / cp' * (self.cp > 1)} = {samples:g}"
        check("global_batch_size", self.global_batch_size, rule, self.global_batch_size == samples)

    def _check_context(self) -> None:
        cp, counts, length = self.cp, self.microbatches, self.model.seq_length
        if cp == 1:
            return
        check("cp", cp, f"must be a divisor of dp {self.dp}", self.dp % cp == 0)
        equal = all(len(set(counts[first : first + cp])) == 1 for first in range(0, self.dp, cp))
        check("microbatches", counts, f"must be equal for each {cp} replicas that share sequences", equal)
        rule = f"must be a multiple of 2 cp tp = {2 * cp * self.tp}"
        check("model.seq_length", length, rule, length % (2 * cp * self.tp) == 0)
        is_plain = self.model.factory is None and self.emulation is None and self.outer_sync is None
        check("cp", cp, "must be 1 in an emulated run, with islands and with model.factory", is_plain)

    def _check_schedule(self) -> None:
        check("chunks", self.chunks, "must be 1 without a pipeline", self.chunks == 1 or self.pp > 1)
        try:
            for num_microbatches in set(self.microbatches):
                self.schedule_of(self.microbatches.index(num_microbatches))
        except ValueError as error:
            raise ValueError(f"schedule: {error}") from None
        room = self.room_in_flight
        rule = f"must be empty or {self.pp} positive numbers, one per pipeline rank"
        check("room_in_flight", room, rule, not room or (len(room) == self.pp and min(room) > 0))
        if self.schedule == "zero-bubble":
            rule = "must not be full under zero-bubble, where each delayed gradient would compute its layer again"
            check("recompute", self.recompute, rule, self.recompute != "full")
            rule = "must be false under zero-bubble: a compiled layer's backward is one piece, which cannot be delayed"
            check("compile", self.compile, rule, not self.compile)
        settings = self.value_type, self.schedule, self.tp, self.cp, self.lora is None
        obstacle = fp8_obstacle(self.model, *settings) if self.fp8 else None
        check("fp8", self.fp8, f"must be false with {obstacle}", obstacle is None)

    def _check_shards(self) -> None:
        for key in self.model.beyond_bundled:
            check(f"model.{key}", getattr(self.model, key), "must not be set: no rank computes it", False)
        for key, size in self.model.sharded_sizes.items():
            check(f"model.{key}", size, f"must be a multiple of tp {self.tp}", size % self.tp == 0)
        factory, emulates = self.model.factory, self.emulation is not None
        check("weights", self.weights, "must be null with model.factory", self.weights is None or factory is None)
        can_shard = self.tp == 1 or (factory is None and not emulates)
        check("tp", self.tp, "must be 1 in an emulated run and with model.factory", can_shard)
        check("model.factory", factory, "must be null in an emulated run", factory is None or not emulates)

    def _check_experts(self) -> None:
        if self.ep == 1:
            return
        rule = "must be 1 without model.experts, with model.factory, in an emulated run, and with outer_sync"
        is_plain = self.emulation is None and self.outer_sync is None
        check("ep", self.ep, rule, self.model.experts is not None and self.model.factory is None and is_plain)
        size = self.grid.expert_replicas
        rule = f"must be a multiple of the {size} replicas that share a layer's experts"
        check("model.experts", self.model.experts, rule, (self.model.experts or 0) % size == 0)
        for first in range(0, self.dp, size):
            counts = self.microbatches[first : first + size]
            rule = f"must be equal for replicas {first} to {first + size - 1}, which share the experts of a layer"
            check("microbatches", self.microbatches, rule, len(set(counts)) == 1)
        rule = f"must be at most tp {self.tp} under zero 3, which shards all weights over all replicas"
        check("ep", self.ep, rule, self.zero == 1 or size == 1)

    def _check_zero(self) -> None:
        if self.zero == 1:
            return
        rule = "must be 1 with model.tied_embeddings, whose table is used twice in a micro-batch"
        check("zero", self.zero, rule, not self.model.tied_embeddings)
        rule = "must not be zero-bubble under zero 3, which does not have the weights for half a backward"
        check("schedule", self.schedule, rule, self.schedule != "zero-bubble")
        rule = "must be false under zero 3, whose weights are made from masters on the device"
        check("optimizer_offload", self.optimizer_offload, rule, not self.optimizer_offload)
        for position, group in enumerate(self.groups):
            if group.axis == "dp":
                counts = tuple(self.microbatches[self.grid.rank(rank).dp_rank] for rank in group.ranks)
                rule = f"must be equal, under zero 3, for the replicas of groups[{position}], {group.name}"
                check("microbatches", counts, rule, len(set(counts)) == 1)

    def _check_lora(self) -> None:
        if self.lora is not None:
            broken = broken_rule(self.lora, self.model)
            check("lora", self.lora, "must be null under zero 3", self.zero == 1)
            check("lora.targets", list(self.lora.targets), broken or "", broken is None)

    def _check_codecs(self) -> None:
        for position, group in enumerate(self.groups):
            rule = f"must not be bf16 in a run whose value_type is {self.value_type}: it would save nothing"
            useful = group.codec != "bf16" or VALUE_BYTES[self.value_type] > BF16_BYTES
            check(f"groups[{position}].codec", group.codec, rule, useful)
            rule = f"must not be lossier than lossiest_codec {self.lossiest_codec}"
            mild = CODECS.index(group.codec) <= CODECS.index(self.lossiest_codec)
            check(f"groups[{position}].codec", group.codec, rule, mild)

    def _check_outer_sync(self) -> None:
        if self.island is None:
            return
        outer = self.island.outer_sync
        least = outer.samples_before + outer.inner_steps * self.global_batch_size
        rule = f"must be at least {least}, the samples of this island and of those before it"
        check("outer_sync.round_samples", outer.round_samples, rule, outer.round_samples >= least)

    def _check_stages(self) -> None:
        expected = self.pp * self.chunks
        check("stages", len(self.stages), f"must be pp * chunks = {expected}", len(self.stages) == expected)
        next_layer = 0
        for position, stage in enumerate(self.stages):
            check(f"stages[{position}].index", stage.index, f"must be {position}", stage.index == position)
            key = f"stages[{position}].first_layer"
            check(key, stage.first_layer, f"must be {next_layer}", stage.first_layer == next_layer)
            next_layer = stage.stop_layer
        key, rule = f"stages[{expected - 1}].stop_layer", f"must be num_layers {self.model.num_layers}"
        check(key, next_layer, rule, next_layer == self.model.num_layers)
