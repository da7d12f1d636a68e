"""The run configuration every rank reads: frozen dataclasses and their strict JSON form. Free of torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.schedule import Schedule, ScheduleName, make_schedule
from holmes_runtime.config.strict_json import parse

SCHEMA_VERSION = 1
BYTE_VALUES = 256  # text read as bytes needs one vocabulary entry per byte value

Axis = Literal["tp", "dp", "pp_forward", "pp_backward"]
Precision = Literal["fp32", "bf16", "fp16"]
Recompute = Literal["none", "selective", "full"]


def _require(condition: bool, key: str, rule: str, value: object) -> None:
    """Raises ValueError `key: rule, got value` unless `condition` holds."""
    if not condition:
        raise ValueError(f"{key}: {rule}, got {value!r}")


def _require_positive(record: object, *keys: str) -> None:
    """Raises ValueError for the first of the attributes `keys` that is not above zero."""
    for key in keys:
        value = getattr(record, key)
        _require(value > 0, key, "must be positive", value)


@dataclass(frozen=True)
class Emulation:
    """Seconds one layer sleeps per micro-batch instead of computing; `slowdown` multiplies them by cluster."""

    forward_s_per_layer: float
    backward_s_per_layer: float
    slowdown: dict[str, float]

    def __post_init__(self) -> None:
        for key in ("forward_s_per_layer", "backward_s_per_layer"):
            value = getattr(self, key)
            _require(value >= 0, key, "must not be negative", value)
        for cluster, factor in self.slowdown.items():
            _require(factor > 0, f"slowdown.{cluster}", "must be positive", factor)

    def on(self, cluster: str) -> Emulation:
        """The seconds on hosts of `cluster`, which have no slowdown of their own any more."""
        factor = self.slowdown.get(cluster, 1.0)
        return Emulation(self.forward_s_per_layer * factor, self.backward_s_per_layer * factor, {})


@dataclass(frozen=True)
class Data:
    """A file, or a directory whose files matching `pattern` (not recursive, by name) are joined.

    Read by file name: .bin as Megatron tokens, .jsonl and all else as text; text becomes bytes, or the tokens of
    `tokenizer`, a `tokenizers` file. The last `validation_fraction` of all is for evaluation.
    """

    path: str
    pattern: str
    tokenizer: str | None
    validation_fraction: float

    def __post_init__(self) -> None:
        inside = 0 <= self.validation_fraction < 1
        _require(inside, "validation_fraction", "must be in [0, 1)", self.validation_fraction)

    @property
    def is_bytes(self) -> bool:
        """Whether every token is surely a byte."""
        return self.tokenizer is None and not self.path.endswith(".bin") and not self.pattern.endswith(".bin")


@dataclass(frozen=True)
class Evaluation:
    """Loss on the same `num_batches` global batches of the validation data, after every `every_steps` steps."""

    every_steps: int
    num_batches: int

    def __post_init__(self) -> None:
        _require_positive(self, "every_steps", "num_batches")


@dataclass(frozen=True)
class Checkpointing:
    """A folder that all hosts share; saved to after every `every_steps` steps and the last; `keep_last` are kept."""

    path: str
    every_steps: int
    keep_last: int

    def __post_init__(self) -> None:
        _require_positive(self, "every_steps", "keep_last")


@dataclass(frozen=True)
class Optimizer:
    """AdamW; `grad_clip` is the largest global gradient norm, None clips nothing.

    The learning rate rises over `warmup_steps` and then follows `decay` to `min_learning_rate` (learning_rate.py).
    """

    learning_rate: float
    min_learning_rate: float
    warmup_steps: int
    decay: Literal["constant", "linear", "cosine"]
    weight_decay: float
    beta1: float
    beta2: float
    grad_clip: float | None

    def __post_init__(self) -> None:
        _require_positive(self, "learning_rate")
        inside = 0 <= self.min_learning_rate <= self.learning_rate
        rule = f"must be in [0, learning_rate {self.learning_rate}]"
        _require(inside, "min_learning_rate", rule, self.min_learning_rate)
        _require(self.warmup_steps >= 0, "warmup_steps", "must not be negative", self.warmup_steps)
        _require(self.weight_decay >= 0, "weight_decay", "must not be negative", self.weight_decay)
        _require(0 <= self.beta1 < 1, "beta1", "must be in [0, 1)", self.beta1)
        _require(0 <= self.beta2 < 1, "beta2", "must be in [0, 1)", self.beta2)
        _require(self.grad_clip is None or self.grad_clip > 0, "grad_clip", "must be positive", self.grad_clip)


@dataclass(frozen=True)
class Stage:
    """Pipeline stage `index`, on pipeline rank index % pp, holds layers [first_layer, stop_layer)."""

    index: int
    first_layer: int
    stop_layer: int

    def __post_init__(self) -> None:
        rule = f"must be above first_layer {self.first_layer}"
        _require(self.stop_layer > self.first_layer, "stop_layer", rule, self.stop_layer)


@dataclass(frozen=True)
class Rank:
    """Where global rank `rank` runs and its coordinates in the pipeline, data and tensor axes."""

    rank: int
    host: str
    cluster: str
    pp_rank: int
    dp_rank: int
    tp_rank: int


GroupKey = tuple[Axis, tuple[int, ...]]


def group_key(axis: Axis, ranks: Iterable[int]) -> GroupKey:
    """What tells groups apart: an edge by (earlier stage's rank, later stage's rank), others by their members."""
    return (axis, tuple(ranks) if axis in ("pp_forward", "pp_backward") else tuple(sorted(ranks)))


@dataclass(frozen=True)
class Group:
    """One process group: `interfaces[i]` is the network interface of `ranks[i]`.

    axis `tp` holds the shards of one stage's layers; `dp` the replicas of one shard; `pp_forward` and `pp_backward` the
    two ranks of one pipeline edge, the rank of the earlier stage first, for activations and for gradients. `net_name`
    is NCCL's network module, read on device "cuda" only; None lets NCCL choose.
    """

    name: str
    axis: Axis
    ranks: tuple[int, ...]
    interfaces: tuple[str, ...]
    net_name: Literal["IB", "Socket"] | None

    def __post_init__(self) -> None:
        distinct = len(set(self.ranks)) == len(self.ranks)
        _require(len(self.ranks) >= 2 and distinct, "ranks", "must be two or more distinct ranks", self.ranks)
        rule = f"must name one interface for each of {len(self.ranks)} ranks"
        _require(len(self.interfaces) == len(self.ranks), "interfaces", rule, self.interfaces)

    @property
    def key(self) -> GroupKey:
        """Axis and members, in an order that means something on the edges only."""
        return group_key(self.axis, self.ranks)

    def interface_of(self, rank: int) -> str:
        """The network interface `rank` uses in this group. Raises ValueError if it is not a member."""
        return self.interfaces[self.ranks.index(rank)]


@dataclass(frozen=True)
class Expectation:
    """What the plan counts on, to tell slow hosts and links by.

    compute_s: seconds one micro-batch computes, by rank, forward and backward of all its stages; empty if not known.
    transfer_s: seconds of one message of activations, by the name of the edge's group.
    """

    compute_s: tuple[float, ...]
    transfer_s: dict[str, float]


@dataclass(frozen=True)
class RunConfig:
    """Everything a rank needs to know about the run. Raises ValueError, naming the key, when inconsistent.

    `microbatches[i]` is how many micro-batches replica i runs per step; `chunks` how many stages a pipeline rank holds;
    `extra_in_flight` one number an edge for the schedule "eager", else empty. `value_type` is the precision of weights,
    activations and what travels between stages; masters, moments and gradient sums are fp32.
    """

    schema_version: int
    run_id: str
    device: Literal["cpu", "cuda"]
    seed: int
    steps: int
    global_batch_size: int
    micro_batch_size: int
    microbatches: tuple[int, ...]
    pp: int
    dp: int
    tp: int
    schedule: ScheduleName
    chunks: int
    extra_in_flight: tuple[int, ...]
    recompute: Recompute
    value_type: Precision
    compile: bool
    model: ModelShape
    emulation: Emulation | None
    data: Data
    evaluation: Evaluation | None
    checkpoint: Checkpointing | None
    resume: bool
    optimizer: Optimizer
    stages: tuple[Stage, ...]
    ranks: tuple[Rank, ...]
    groups: tuple[Group, ...]
    expectation: Expectation | None
    timeout_s: float
    threads_per_rank: int

    def __post_init__(self) -> None:
        self.validate()

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """The configuration in `text`. Raises ValueError naming the key path and the value that is wrong."""
        return parse(cls, text)

    def to_json(self) -> str:
        """The JSON text that `from_json` reads back to an equal configuration."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @property
    def world_size(self) -> int:
        """Number of ranks, pp * dp * tp."""
        return self.pp * self.dp * self.tp

    @property
    def total_microbatches(self) -> int:
        """Micro-batches of all replicas per step."""
        return sum(self.microbatches)

    def slots(self, dp_rank: int) -> range:
        """The samples of the global batch that replica `dp_rank` trains on."""
        bounds = [self.micro_batch_size * sum(self.microbatches[:replica]) for replica in (dp_rank, dp_rank + 1)]
        return range(*bounds)

    def stages_of(self, pp_rank: int) -> tuple[Stage, ...]:
        """The stages pipeline rank `pp_rank` holds, first layers first."""
        return self.stages[pp_rank :: self.pp]

    def schedule_of(self, dp_rank: int) -> Schedule:
        """The actions of replica `dp_rank` by pipeline rank."""
        return make_schedule(self.schedule, self.pp, self.microbatches[dp_rank], self.chunks, self.extra_in_flight)

    @cached_property
    def _at(self) -> dict[tuple[int, int, int], Rank]:
        return {(placed.pp_rank, placed.dp_rank, placed.tp_rank): placed for placed in self.ranks}

    @cached_property
    def _numbered(self) -> dict[int, Rank]:
        return {placed.rank: placed for placed in self.ranks}

    def rank_at(self, pp_rank: int, dp_rank: int, tp_rank: int) -> Rank:
        """The rank at these coordinates. Raises KeyError if there is none."""
        return self._at[pp_rank, dp_rank, tp_rank]

    def placement(self, rank: int) -> Rank:
        """Host and coordinates of global rank `rank`. Raises KeyError if there is none."""
        if rank not in self._numbered:
            raise KeyError(f"the run has {self.world_size} ranks, no rank {rank}")
        return self._numbered[rank]

    def pipeline(self, dp_rank: int, tp_rank: int) -> tuple[int, ...]:
        """Global ranks of one shard of replica `dp_rank`'s pipeline, first pipeline rank first."""
        return tuple(self.rank_at(pp_rank, dp_rank, tp_rank).rank for pp_rank in range(self.pp))

    def replicas(self, me: Rank) -> tuple[int, ...]:
        """Global ranks that hold the same part of the model as `me`."""
        return tuple(self.rank_at(me.pp_rank, dp_rank, me.tp_rank).rank for dp_rank in range(self.dp))

    def shards(self, me: Rank) -> tuple[int, ...]:
        """Global ranks that share the layers of `me`."""
        return tuple(self.rank_at(me.pp_rank, me.dp_rank, tp_rank).rank for tp_rank in range(self.tp))

    def edge_before(self, me: Rank) -> tuple[int, int] | None:
        """Ranks (earlier stage, `me`) of the edge that brings activations; None on the first without chunks."""
        if self.pp == 1 or (me.pp_rank == 0 and self.chunks == 1):
            return None
        return self.rank_at((me.pp_rank - 1) % self.pp, me.dp_rank, me.tp_rank).rank, me.rank

    def edge_after(self, me: Rank) -> tuple[int, int] | None:
        """Ranks (`me`, later stage) of the edge that takes activations; None on the last without chunks."""
        if self.pp == 1 or (me.pp_rank == self.pp - 1 and self.chunks == 1):
            return None
        return me.rank, self.rank_at((me.pp_rank + 1) % self.pp, me.dp_rank, me.tp_rank).rank

    def validate(self) -> None:
        """Raises ValueError, naming the key and the value, unless all parts agree with one another."""
        _require(self.schema_version == SCHEMA_VERSION, "schema_version", "must be 1", self.schema_version)
        _require_positive(self, "steps", "global_batch_size", "micro_batch_size", "pp", "dp", "tp", "chunks")
        _require_positive(self, "timeout_s", "threads_per_rank")
        enough = not self.data.is_bytes or self.model.vocab_size >= BYTE_VALUES
        rule = f"must be at least {BYTE_VALUES} for text read as bytes"
        _require(enough, "model.vocab_size", rule, self.model.vocab_size)
        something = self.evaluation is None or self.data.validation_fraction > 0
        rule = "must be above 0 for an evaluation"
        _require(something, "data.validation_fraction", rule, self.data.validation_fraction)
        counted = len(self.expectation.compute_s) if self.expectation is not None else 0
        rule = f"must be empty or one for each of {self.world_size} ranks"
        _require(counted in (0, self.world_size), "expectation.compute_s", rule, counted)
        rule = "must be false without a checkpoint folder"
        _require(not self.resume or self.checkpoint is not None, "resume", rule, self.resume)
        self._validate_batch()
        self._validate_schedule()
        self._validate_shards()
        self._validate_stages()
        self._validate_ranks()
        self._validate_groups()

    def _validate_batch(self) -> None:
        right = len(self.microbatches) == self.dp and min(self.microbatches, default=0) > 0
        _require(right, "microbatches", f"must be {self.dp} positive numbers, one for each of dp", self.microbatches)
        samples = self.total_microbatches * self.micro_batch_size
        rule = f"must be micro_batch_size * sum(microbatches) = {samples}"
        _require(self.global_batch_size == samples, "global_batch_size", rule, self.global_batch_size)

    def _validate_schedule(self) -> None:
        _require(self.chunks == 1 or self.pp > 1, "chunks", "must be 1 without a pipeline", self.chunks)
        try:
            for num_microbatches in set(self.microbatches):
                self.schedule_of(self.microbatches.index(num_microbatches))
        except ValueError as error:
            raise ValueError(f"schedule: {error}") from None
        sensible = self.schedule != "zero-bubble" or self.recompute != "full"
        rule = "must not be full under zero-bubble, where each delayed gradient would compute its layer again"
        _require(sensible, "recompute", rule, self.recompute)

    def _validate_shards(self) -> None:
        for key in ("num_heads", "num_kv_heads", "ffn_hidden_size", "seq_length"):
            rule = f"must be a multiple of tp {self.tp}"
            _require(getattr(self.model, key) % self.tp == 0, f"model.{key}", rule, getattr(self.model, key))
        whole = self.tp == 1 or (self.emulation is None and self.model.factory is None)
        _require(whole, "tp", "must be 1 for emulation and for a model of one's own", self.tp)
        own = self.model.factory is None or self.emulation is None
        _require(own, "model.factory", "must be null in an emulated run", self.model.factory)

    def _validate_stages(self) -> None:
        expected = self.pp * self.chunks
        _require(len(self.stages) == expected, "stages", f"must be pp * chunks = {expected}", len(self.stages))
        next_layer = 0
        for position, stage in enumerate(self.stages):
            _require(stage.index == position, f"stages[{position}].index", f"must be {position}", stage.index)
            key = f"stages[{position}].first_layer"
            _require(stage.first_layer == next_layer, key, f"must be {next_layer}", stage.first_layer)
            next_layer = stage.stop_layer
        rule = f"must be num_layers {self.model.num_layers}"
        _require(next_layer == self.model.num_layers, f"stages[{expected - 1}].stop_layer", rule, next_layer)

    def _validate_ranks(self) -> None:
        numbers = sorted(placed.rank for placed in self.ranks)
        rule = f"must be 0..{self.world_size - 1}, each once"
        _require(numbers == list(range(self.world_size)), "ranks", rule, numbers)
        places = Counter((placed.pp_rank, placed.dp_rank, placed.tp_rank) for placed in self.ranks)
        for position, placed in enumerate(self.ranks):
            place = (placed.pp_rank, placed.dp_rank, placed.tp_rank)
            inside = all(0 <= at < size for at, size in zip(place, (self.pp, self.dp, self.tp), strict=True))
            rule = f"(pp_rank, dp_rank, tp_rank) must be within ({self.pp}, {self.dp}, {self.tp}) and held once"
            _require(inside and places[place] == 1, f"ranks[{position}]", rule, place)

    def _validate_groups(self) -> None:
        names = [group.name for group in self.groups]
        _require(len(set(names)) == len(names), "groups", "must have distinct names", names)
        needed = self._needed_groups()
        for position, group in enumerate(self.groups):
            rule = (
                "must be the shards or the replicas of one stage, or two neighbouring stages of one replica, "
                f"the earlier first, in one group only ({group.axis})"
            )
            _require(needed[group.key] == 1, f"groups[{position}].ranks", rule, group.ranks)
            needed[group.key] = 0
        missing = [key for key, count in needed.items() if count]
        _require(not missing, "groups", "must hold every group of the plan", f"none for {missing}")

    def _needed_groups(self) -> Counter[GroupKey]:
        """Every group this run communicates in."""
        needed: set[GroupKey] = set()
        for me in self.ranks:
            if self.tp > 1:
                needed.add(group_key("tp", self.shards(me)))
            if self.dp > 1:
                needed.add(group_key("dp", self.replicas(me)))
            edge = self.edge_after(me)
            if edge is not None:
                needed.update([("pp_forward", edge), ("pp_backward", edge)])
        return Counter(needed)
