"""Settings of a run other than its model and its ranks: data, optimizer, checkpoints, rehearsal. Free of torch.

Most are also sections of job.yaml. The text below a field is its description in docs/job.md.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, get_args

from holmes_runtime.config.checks import check
from holmes_runtime.config.field_limits import (
    AboveZero,
    Count,
    Fraction,
    Limits,
    NotNegative,
    OrAll,
    Percent,
    Positive,
    SharedSettings,
)
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.rooted_path import RootedPath

Precision = Literal["fp32", "bf16", "fp16"]
VALUE_BYTES: dict[Precision, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
Recompute = Literal["none", "selective", "full"]
Documents = Literal["joined", "separate"]
Zero = Literal[1, 3]
"""The stage of ZeRO: 1 shards optimizer states over replicas; 3 also shards weights and gradients, inside a cluster."""
OuterCodec = Literal["none", "int8", "int4"]
BYTE_VALUES = 256  # text read as bytes needs one vocabulary entry per byte value


@dataclass(frozen=True)
class EmulationSettings(SharedSettings):
    """Rehearsal on the real network without GPUs: computing a layer is a sleep, in seconds per sample."""

    forward_s_per_layer: NotNegative
    """Seconds that the forward of one layer sleeps per sample. Example: 0.004"""
    backward_s_per_layer: NotNegative
    """Seconds that the backward of one layer sleeps per sample. Example: 0.008"""
    slowdown: dict[str, AboveZero] = field(default_factory=dict)
    """Factors by which the hosts of a cluster sleep longer. Example: {b: 1.5}"""

    def on(self, cluster: str, samples: int) -> EmulationSettings:
        """Return the seconds for `samples` samples on hosts of `cluster`, with its slowdown applied."""
        factor = samples * self.slowdown.get(cluster, 1.0)
        return EmulationSettings(self.forward_s_per_layer * factor, self.backward_s_per_layer * factor)


@dataclass(frozen=True)
class DataSource(SharedSettings):
    """One file or folder of a blend."""

    path: RootedPath
    """File or folder, in the form of a single `data.path`. Example: /data/code.jsonl"""
    weight: AboveZero
    """The source's share of the samples is this, divided by the sum of all weights. Example: 0.3"""


class _PathOrBlend:
    """The choice between the two types of `data.path` by the type of the value. Errors then mention only that type."""

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> dict[str, Any]:
        path, blend = (handler.generate_schema(kind) for kind in get_args(source))
        return {
            "type": "tagged-union",
            "choices": {"path": path, "blend": blend},
            "discriminator": lambda value: "path" if isinstance(value, str) else "blend",
        }


def takes_document_ends(device: str, precision: Precision, cp: int, model: ModelShape) -> bool:
    """Return True if attention takes the ends of documents themselves instead of a mask: see `document_mask.py`.

    FlashAttention needs head sizes that are multiples of 8. Above 192, not every GPU with bf16 has them
    (flash_api.cpp).
    """
    fits = model.head_size % 8 == 0 and model.head_size <= 192
    return (device, precision, cp) == ("cuda", "bf16", 1) and fits


@dataclass(frozen=True)
class TeacherSettings(SharedSettings):
    """Distillation: the loss is cross entropy, mixed with the divergence from a teacher's probabilities.

    `holmes data TOKENS.bin --teacher FOLDER` writes the probabilities to TOKENS.teacher, which must be in the folder of
    TOKENS.bin on every host. Evaluations use cross entropy only.
    """

    # Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural Network, 2015.
    weight: Annotated[float, Limits(gt=0, le=1)] = 0.5
    """Share of the teacher in the loss; the rest is cross entropy with the tokens of the data. Example: 0.5"""
    temperature: Annotated[float, Limits(ge=0.01, le=100)] = 1.0
    """Divisor of the logits of both models before the softmax. Its square multiplies the teacher's part of the loss.
    Example: 2"""


DataPath = Annotated[RootedPath | tuple[DataSource, ...], _PathOrBlend()]


def _check_path(key: str, path: DataPath) -> None:
    """Raise ValueError naming `key` if a blend is empty or names a path twice."""
    paths = [posixpath.normpath(each) for each in ([path] if isinstance(path, str) else [each.path for each in path])]
    check(key, paths, "must name a file or folder", bool(paths))
    twice = next((each for each in paths if paths.count(each) > 1), None)
    check(key, twice, "must name each once: add up the weights", twice is None)


@dataclass(frozen=True)
class DataSettings(SharedSettings):
    """Text or tokens to train on, at the same path on every host: a file, or a folder and a file pattern.

    The format follows from the name: .bin with its .idx in the same folder (Megatron tokens, or examples packed by
    `holmes data`); .jsonl, .jsonl.gz and .jsonl.zst (the field "text"); .parquet and .arrow (the column "text"); any
    other file is raw text.
    """

    path: DataPath
    """A file or folder, or several, blended by weight. A blend is the same under every plan: in its first n samples,
    for any n, each source has its share to within one sample. Example: /data/text.jsonl"""
    pattern: str = "*"
    """Pattern for the names of the files to read in a folder. Example: "*.jsonl\""""
    tokenizer: RootedPath | None = None
    """A `tokenizers` JSON file; without one, text becomes bytes. Example: /models/llama/tokenizer.json"""
    bytes: bool = False
    """Train on bytes: files that are not text, such as images, are read as they are, and text as its bytes under any
    vocabulary; false: both are refused. Example: true"""
    skip_bad_lines: Count = 0
    """Number of lines of JSON and rows of Parquet without text that a run may skip, over all files. The run's record
    has the number skipped. One more ends the run, and the error names its file and line. Example: 100"""
    documents: Documents = "joined"
    """separate: attention stays inside a document, and positions count from the start of the document in the sample. A
    document is what an .idx lists as one, a line of a .jsonl, or else a whole file. Example: separate"""
    validation_fraction: Fraction = 0.0
    """Share of each file's tokens, taken from its end, kept for evaluation and not trained on. Example: 0.01"""
    teacher: TeacherSettings | None = None
    """Distillation from a model whose highest logits are stored next to the token files."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_path("path", self.path)

    def is_masked(self, device: str, precision: Precision, cp: int, model: ModelShape) -> bool:
        """Return True if attention needs a mask where documents end."""
        return self.documents == "separate" and not takes_document_ends(device, precision, cp, model)

    @property
    def sources(self) -> tuple[DataSource, ...]:
        """The sources of a blend, or the only source."""
        return (DataSource(self.path, 1.0),) if isinstance(self.path, str) else self.path

    @property
    def paths(self) -> tuple[str, ...]:
        """All files and folders that are read: the sources and the tokenizer."""
        tokenizer = () if self.tokenizer is None else (self.tokenizer,)
        return (*(source.path for source in self.sources), *tokenizer)

    @property
    def is_bytes(self) -> bool:
        """True if some text is read as bytes, judged by file names."""
        is_text = not all(source.path.endswith(".bin") for source in self.sources)
        return self.tokenizer is None and is_text and not self.pattern.endswith(".bin")


@dataclass(frozen=True)
class EvaluationSettings(SharedSettings):
    """Evaluation of the loss on the validation split: its interval in steps, and its size in batches."""

    every_steps: Positive
    """Number of steps between two evaluations; needs `data.validation_fraction`. Example: 200"""
    num_batches: Positive = 1
    """Number of global batches of the validation split per evaluation. Example: 8"""
    patience: Positive | None = None
    """Stop early after this many evaluations in a row without a new lowest loss; the run then counts as done. Not set:
    the run takes all its steps. Not for rehearsals and islands. Example: 5"""

    def check_patience(self, emulates: bool, has_islands: bool) -> None:
        """Raise ValueError if early stopping is set for a run that cannot stop early."""
        rule = "must be null in a rehearsal (emulate), which trains nothing"
        check("evaluation.patience", self.patience, rule, self.patience is None or not emulates)
        rule = "must be null with islands: an island would stop alone"
        check("evaluation.patience", self.patience, rule, self.patience is None or not has_islands)


@dataclass(frozen=True)
class ProfileSettings(SharedSettings):
    """Steps recorded in runs/ID/profile.json.gz, for Perfetto, with predicted and measured times."""

    steps: Positive = 3
    """Number of recorded steps. Example: 3"""
    after: Count = 5
    """Number of steps of an attempt before the recorded ones. Compiling and connecting slow the first. Example: 5"""


@dataclass(frozen=True)
class CheckpointSettings(SharedSettings):
    """Folder and interval of checkpoints. The last step is always saved."""

    path: RootedPath
    """Folder that all hosts share, or a folder with the same name on each host's own disk. Example: /shared/ckpt"""
    every_steps: Positive
    """Number of steps between two checkpoints. Example: 100"""
    keep_last: Positive = 2
    """Number of newest checkpoints to keep, plus the best one of an evaluated run. Others are deleted. Example: 5"""
    copies: Positive = 2
    """Number of hosts that hold each shard, if hosts save on their own disks. Copies are in other clusters if there are
    any. Example: 2"""


@dataclass(frozen=True)
class OptimizerSettings(SharedSettings):
    """AdamW, the course of its learning rate, and the losses and limits of gradients."""

    learning_rate: AboveZero = 3e-4
    """Highest learning rate, reached at the end of the warm-up. Example: 3.0e-4"""
    min_learning_rate: NotNegative = 0.0
    """Learning rate at the last step, unless `decay` is constant. Example: 3.0e-5"""
    warmup_steps: Count = 0
    """Number of first steps over which the rate rises linearly to `learning_rate`. Example: 100"""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the rate from the end of the warm-up to the last step. Example: cosine"""
    weight_decay: NotNegative = 0.1
    """Weight decay of matrices. Vectors, such as biases and norms, have none. Example: 0.1"""
    beta1: Fraction = 0.9
    """Decay rate of the running mean of gradients. Example: 0.9"""
    beta2: Fraction = 0.95
    """Decay rate of the running mean of squared gradients. Example: 0.95"""
    grad_clip: AboveZero | None = 1.0
    """Largest norm of all gradients together; larger gradients are scaled down to it; null: no limit.
    Example: 1.0"""
    router_balance: NotNegative = 0.0
    """Coefficient of the load-balancing loss of a model with experts: the mean over layers, for each micro-batch alone.
    Example: 0.001"""

    def __post_init__(self) -> None:
        super().__post_init__()
        lowest, highest = self.min_learning_rate, self.learning_rate
        check("min_learning_rate", lowest, f"must be at most learning_rate {highest}", lowest <= highest)

    def rate_at(self, step: int, num_steps: int) -> float:
        """Return the learning rate of `step`, counted from 0, of `num_steps`: the same after any restart.

        The rate rises linearly over the warm-up; the last step of the warm-up has the full rate. After that the rate
        stays constant, or it falls on a line or half a cosine (Loshchilov and Hutter, SGDR, 2017) so that the last step
        of the run has `min_learning_rate`.
        """
        highest, lowest = self.learning_rate, self.min_learning_rate
        if step < self.warmup_steps:
            return highest * (step + 1) / self.warmup_steps
        if self.decay == "constant":
            return highest
        first, last = max(self.warmup_steps - 1, 0), num_steps - 1
        progress = min((step - first) / (last - first), 1.0) if last > first else 1.0
        share = 1 - progress if self.decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return lowest + (highest - lowest) * share


@dataclass(frozen=True)
class IslandsSettings(SharedSettings):
    """Training clusters apart, as islands that exchange pseudo-gradients once per round (DiLoCo)."""

    inner_steps: Annotated[Positive | Literal["all"], OrAll()] | None = None
    """Number of steps that the fastest island takes in a round; others take as many as fit in its time. all: one round
    that ends by averaging the islands. Not set: the planner chooses, up to half of the job's steps. Example: 100"""
    codec: OuterCodec | None = None
    """Codec for the pseudo-gradients that islands exchange, with error feedback; not set: the planner chooses.
    Example: int8"""
    fragments: Positive | None = None
    """Number of fragments of the parameters, synchronized one after another; 1: all parameters at the end of the round.
    Not set: the planner chooses. Example: 2"""
    delay_steps: Count | None = None
    """Steps from sending a fragment to applying the mean; 0: wait for it. Not set: the planner chooses. Example: 5"""
    max_loss_penalty: Percent | None = None
    """Largest rise in loss, compared with training as one run, that the planner's choice may be expected to cost. This
    was measured on a small model (docs/planning.md, Islands); not set: any. Example: 0.5%"""
    outer_rate: AboveZero = 0.7
    """Learning rate of the outer step. Example: 0.7"""
    momentum: Fraction = 0.9
    """Nesterov momentum of the outer step. Example: 0.8"""
    grace_s: AboveZero = 30.0
    """Seconds that an outer sync waits for other islands after the first arrival. Example: 60"""
    quorum: Positive = 1
    """Smallest number of islands that may complete an outer sync. Example: 2"""
    data: dict[str, DataPath] = field(default_factory=dict, hash=False)
    """Paths to use instead of `data.path`, by cluster, for data that may not leave a site. Each such cluster is an
    island of its own. The rest of `data` applies to all. Example: {a: /data/north, b: /data/south}"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for cluster, path in self.data.items():
            _check_path(f"data.{cluster}", path)
        if self.inner_steps is None:
            return
        if self.inner_steps == "all":
            rule = "must be {} where inner_steps is all: nothing follows the only outer sync"
            check("fragments", self.fragments, rule.format(1), self.fragments in (None, 1))
            check("delay_steps", self.delay_steps, rule.format(0), self.delay_steps in (None, 0))
            return
        fragments = self.fragments or 1
        rule = f"must be at most inner_steps {self.inner_steps}"
        check("fragments", self.fragments, rule, fragments <= self.inner_steps)
        apart = self.inner_steps // fragments
        rule = f"must be at most {apart}, the steps between two fragments"
        check("delay_steps", self.delay_steps, rule, (self.delay_steps or 0) <= apart)

    def data_on(self, clusters: Collection[str], common: DataSettings) -> DataSettings:
        """Return the data that an island of these clusters reads: its only cluster's own data if it has any."""
        own = self.data.get(next(iter(clusters))) if len(clusters) == 1 else None
        return common if own is None else replace(common, path=own)

    def chosen(self) -> ChosenIslands:
        """Return these settings with none left open. Raises ValueError if one is left to the planner."""
        return ChosenIslands(**vars(self))


@dataclass(frozen=True, kw_only=True)
class ChosenIslands(IslandsSettings):
    """Settings of islands that the job fixes or the planner chose."""

    inner_steps: Positive
    codec: OuterCodec
    fragments: Positive
    delay_steps: Count

    def __post_init__(self) -> None:
        for key in ("inner_steps", "codec", "fragments", "delay_steps"):
            check(key, getattr(self, key), "must be set", getattr(self, key) is not None)
        super().__post_init__()

    def as_settings(self) -> IslandsSettings:
        """Return the same settings as a section of job.yaml."""
        return IslandsSettings(**{each.name: getattr(self, each.name) for each in fields(IslandsSettings)})


@dataclass(frozen=True, kw_only=True)
class OuterSync(ChosenIslands):
    """The outer syncs of this run, which is island number `island` of `num_islands`.

    All islands that read the same data take `round_samples` samples of it in a round. This island's own come after
    the `samples_before` of other islands. `interfaces` lead from the ranks to the other islands, with `streams`
    connections to each rank there.
    """

    island: Count
    num_islands: Positive
    samples_before: Count
    round_samples: Positive
    interfaces: tuple[str, ...]
    streams: Positive

    def __post_init__(self) -> None:
        super().__post_init__()
        check("island", self.island, f"must be below {self.num_islands}", self.island < self.num_islands)
        rule = f"must be at most {self.num_islands}, as many as there are islands"
        check("quorum", self.quorum, rule, self.quorum <= self.num_islands)


@dataclass(frozen=True)
class Expectation:
    """The plan's predictions, against which slow hosts and links are measured.

    compute_s: seconds that one micro-batch computes, by rank, for the forward and backward of all its stages; empty if
    unknown. transfer_s: seconds of one message of activations, by the name of the edge's group. bytes_per_s: that
    group's share of the wire while all edges are loaded, by the same names.
    """

    compute_s: tuple[float, ...]
    transfer_s: dict[str, float]
    bytes_per_s: dict[str, float]


def fp8_obstacle(
    model: ModelShape, value_type: Precision, schedule: str | None, tp: int, cp: int, trains_all: bool
) -> str | None:
    """Return the first setting that keeps layers from multiplying in FP8; None if there is none.

    GPUs multiply matrices in FP8 if their dimensions are multiples of 16. The number of tokens is such a dimension when
    the gradient of a weight is computed. If several ranks share a sequence, a rank's tokens come in two parts.
    """
    tokens = model.seq_length if cp == 1 else model.seq_length // (2 * cp)
    widths = model.hidden_size, model.query_size + 2 * model.kv_size, model.query_size, model.ffn_size, tokens
    names = "hidden_size", "queries, keys and values", "queries", "ffn_hidden_size", "tokens"
    odd = (f"{name} {width}, not a multiple of 16" for name, width in zip(names, widths, strict=True) if width % 16)
    settings = {
        f"precision {value_type}": value_type != "bf16",
        "schedule zero-bubble": schedule == "zero-bubble",
        f"tp {tp}": tp > 1,
        "trainable": not trains_all,
        f"model.factory {model.factory}": model.factory is not None,
        f"model.experts {model.experts}": model.experts is not None,
    }
    return next((name for name, is_set in settings.items() if is_set), None) or next(odd, None)
