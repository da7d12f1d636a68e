"""The run configuration every rank reads: frozen dataclasses and their strict JSON form. Free of torch."""

from __future__ import annotations

import json
import math
import types
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

SCHEMA_VERSION = 1
BYTE_VALUES = 256  # a byte-level corpus needs one vocabulary entry per byte value

Axis = Literal["dp", "pp_forward", "pp_backward"]
Record = TypeVar("Record")


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
class ModelShape:
    """A GPT with learned positions and an untied head. Raises ValueError for sizes no model can have."""

    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    seq_length: int

    def __post_init__(self) -> None:
        _require_positive(self, "num_layers", "hidden_size", "num_heads", "vocab_size", "seq_length")
        divides = self.hidden_size % self.num_heads == 0
        _require(divides, "num_heads", f"must divide hidden_size {self.hidden_size}", self.num_heads)


@dataclass(frozen=True)
class Emulation:
    """Seconds one layer sleeps per micro-batch instead of computing."""

    forward_s_per_layer: float
    backward_s_per_layer: float

    def __post_init__(self) -> None:
        for key in ("forward_s_per_layer", "backward_s_per_layer"):
            value = getattr(self, key)
            _require(value >= 0, key, "must not be negative", value)


@dataclass(frozen=True)
class Corpus:
    """A file, or a directory whose files matching `pattern` (not recursive, by name) are joined; read as bytes."""

    path: str
    pattern: str


@dataclass(frozen=True)
class Optimizer:
    """AdamW; `grad_clip` is the largest global gradient norm, None clips nothing."""

    learning_rate: float
    weight_decay: float
    beta1: float
    beta2: float
    grad_clip: float | None

    def __post_init__(self) -> None:
        _require_positive(self, "learning_rate")
        _require(self.weight_decay >= 0, "weight_decay", "must not be negative", self.weight_decay)
        _require(0 <= self.beta1 < 1, "beta1", "must be in [0, 1)", self.beta1)
        _require(0 <= self.beta2 < 1, "beta2", "must be in [0, 1)", self.beta2)
        _require(self.grad_clip is None or self.grad_clip > 0, "grad_clip", "must be positive", self.grad_clip)


@dataclass(frozen=True)
class Stage:
    """Pipeline stage `index` holds layers [first_layer, stop_layer)."""

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


@dataclass(frozen=True)
class Group:
    """One process group: `interfaces[i]` is the network interface of `ranks[i]`.

    axis `dp` holds the replicas of one stage; `pp_forward` and `pp_backward` hold the two ranks of one pipeline
    edge, for activations and for gradients. `net_name` is NCCL's network module, read on device "cuda" only;
    None lets NCCL choose.
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

    def interface_of(self, rank: int) -> str:
        """The network interface `rank` uses in this group. Raises ValueError if it is not a member."""
        return self.interfaces[self.ranks.index(rank)]


@dataclass(frozen=True)
class RunConfig:
    """Everything a rank needs to know about the run. Raises ValueError, naming the key, when inconsistent."""

    schema_version: int
    run_id: str
    device: Literal["cpu", "cuda"]
    seed: int
    steps: int
    global_batch_size: int
    micro_batch_size: int
    pp: int
    dp: int
    tp: int
    model: ModelShape
    emulation: Emulation | None
    corpus: Corpus
    optimizer: Optimizer
    stages: tuple[Stage, ...]
    ranks: tuple[Rank, ...]
    groups: tuple[Group, ...]
    schedule: Literal["1f1b"]
    timeout_s: float
    threads_per_rank: int

    def __post_init__(self) -> None:
        self.validate()

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """The configuration in `text`. Raises ValueError naming the key path and the value that is wrong."""
        return _decode_record(cls, json.loads(text, parse_constant=_refuse_constant), "")

    def to_json(self) -> str:
        """The JSON text that `from_json` reads back to an equal configuration."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @property
    def world_size(self) -> int:
        """Number of ranks, pp * dp * tp."""
        return self.pp * self.dp * self.tp

    @property
    def num_microbatches(self) -> int:
        """Micro-batches each replica runs per step."""
        return self.global_batch_size // (self.dp * self.micro_batch_size)

    @property
    def samples_per_replica(self) -> int:
        """Samples each replica trains on per step."""
        return self.global_batch_size // self.dp

    def rank_at(self, pp_rank: int, dp_rank: int) -> Rank:
        """The rank that holds stage `pp_rank` of replica `dp_rank`. Raises KeyError if there is none."""
        for placed in self.ranks:
            if (placed.pp_rank, placed.dp_rank) == (pp_rank, dp_rank):
                return placed
        raise KeyError(f"no rank holds stage {pp_rank} of replica {dp_rank}")

    def placement(self, rank: int) -> Rank:
        """Host and coordinates of global rank `rank`. Raises KeyError if there is none."""
        for placed in self.ranks:
            if placed.rank == rank:
                return placed
        raise KeyError(f"the run has {self.world_size} ranks, no rank {rank}")

    def stage_ranks(self, dp_rank: int) -> tuple[int, ...]:
        """Global ranks of replica `dp_rank`'s pipeline, first stage first."""
        return tuple(self.rank_at(pp_rank, dp_rank).rank for pp_rank in range(self.pp))

    def group(self, axis: Axis, ranks: frozenset[int]) -> Group:
        """The group of `axis` whose members are `ranks`. Raises KeyError if there is none."""
        for group in self.groups:
            if group.axis == axis and frozenset(group.ranks) == ranks:
                return group
        raise KeyError(f"no {axis} group joins ranks {sorted(ranks)}")

    def validate(self) -> None:
        """Raises ValueError, naming the key and the value, unless all parts agree with one another."""
        _require(self.schema_version == SCHEMA_VERSION, "schema_version", "must be 1", self.schema_version)
        _require_positive(self, "steps", "global_batch_size", "micro_batch_size", "pp", "dp", "tp")
        _require_positive(self, "timeout_s", "threads_per_rank")
        _require(self.tp == 1, "tp", "must be 1: this runtime does not split layers", self.tp)
        _require(self.schedule == "1f1b", "schedule", "must be '1f1b'", self.schedule)
        rule = f"must be at least {BYTE_VALUES} for a byte-level corpus"
        _require(self.model.vocab_size >= BYTE_VALUES, "model.vocab_size", rule, self.model.vocab_size)
        samples = self.dp * self.micro_batch_size
        rule = f"must be a multiple of dp * micro_batch_size = {samples}"
        _require(self.global_batch_size % samples == 0, "global_batch_size", rule, self.global_batch_size)
        self._validate_stages()
        self._validate_ranks()
        self._validate_groups()

    def _validate_stages(self) -> None:
        _require(len(self.stages) == self.pp, "stages", f"must be {self.pp}, one for each of pp", len(self.stages))
        next_layer = 0
        for position, stage in enumerate(self.stages):
            _require(stage.index == position, f"stages[{position}].index", f"must be {position}", stage.index)
            key = f"stages[{position}].first_layer"
            _require(stage.first_layer == next_layer, key, f"must be {next_layer}", stage.first_layer)
            next_layer = stage.stop_layer
        rule = f"must be num_layers {self.model.num_layers}"
        _require(next_layer == self.model.num_layers, f"stages[{self.pp - 1}].stop_layer", rule, next_layer)

    def _validate_ranks(self) -> None:
        numbers = sorted(placed.rank for placed in self.ranks)
        rule = f"must be 0..{self.world_size - 1}, each once"
        _require(numbers == list(range(self.world_size)), "ranks", rule, numbers)
        places = Counter((placed.pp_rank, placed.dp_rank, placed.tp_rank) for placed in self.ranks)
        for position, placed in enumerate(self.ranks):
            place = (placed.pp_rank, placed.dp_rank, placed.tp_rank)
            inside = placed.pp_rank in range(self.pp) and placed.dp_rank in range(self.dp) and placed.tp_rank == 0
            rule = f"(pp_rank, dp_rank, tp_rank) must be within ({self.pp}, {self.dp}, {self.tp}) and held once"
            _require(inside and places[place] == 1, f"ranks[{position}]", rule, place)

    def _validate_groups(self) -> None:
        names = [group.name for group in self.groups]
        _require(len(set(names)) == len(names), "groups", "must have distinct names", names)
        needed = self._needed_groups()
        for position, group in enumerate(self.groups):
            key = (group.axis, frozenset(group.ranks))
            rule = "must be the replicas of one stage, or two neighbouring stages of one replica, in one group only"
            _require(needed[key] == 1, f"groups[{position}].ranks", f"{rule} ({group.axis})", group.ranks)
            needed[key] = 0
        missing = [(axis, sorted(ranks)) for (axis, ranks), count in needed.items() if count]
        _require(not missing, "groups", "must hold every group of the plan", f"none for {missing}")

    def _needed_groups(self) -> Counter[tuple[Axis, frozenset[int]]]:
        """(axis, members) of every group this run communicates in, each counted once."""
        needed: Counter[tuple[Axis, frozenset[int]]] = Counter()
        pipelines = [self.stage_ranks(dp_rank) for dp_rank in range(self.dp)]
        if self.dp > 1:
            needed.update(("dp", frozenset(replicas)) for replicas in zip(*pipelines, strict=True))
        for pipeline in pipelines:
            for edge in pairwise(pipeline):
                needed.update([("pp_forward", frozenset(edge)), ("pp_backward", frozenset(edge))])
        return needed


def _refuse_constant(name: str) -> float:
    raise ValueError(f"numbers must be finite, got {name}")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _decode_record(cls: type[Record], data: object, path: str) -> Record:
    """An instance of dataclass `cls` from parsed JSON. Raises ValueError naming the key path and the value."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{path or 'configuration'}: expected an object, got {data!r}")
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    for key, value in data.items():
        if key not in known:
            raise ValueError(f"{_join(path, key)}: unknown key, got {value!r}")
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name not in data:
            raise ValueError(f"{_join(path, field.name)}: missing from {sorted(data)!r}")
        values[field.name] = _decode(hints[field.name], data[field.name], _join(path, field.name))
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(_join(path, str(error))) from None


def _decode(hint: Any, value: object, path: str) -> Any:
    """`value` as the annotated type `hint`: a record, tuple, optional, literal or scalar. Raises ValueError."""
    if is_dataclass(hint) and isinstance(hint, type):
        return _decode_record(hint, value, path)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        present = next(argument for argument in arguments if argument is not type(None))
        return None if value is None else _decode(present, value, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{path}: expected a list, got {value!r}")
        return tuple(_decode(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value))
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise ValueError(f"{path}: expected one of {list(arguments)}, got {value!r}")
        return value
    return _decode_scalar(hint, value, path)


def _decode_scalar(hint: type, value: object, path: str) -> int | float | str:
    """`value` as int, float or str. A whole number may stand for a float; a boolean never for a number."""
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or isinstance(value, bool):
        raise ValueError(f"{path}: expected {hint.__name__}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path}: expected a finite number, got {value!r}")
    assert isinstance(value, int | float | str)
    return value
