"""Settings of a run other than its model and its ranks: data, optimizer, checkpoints, rehearsal. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holmes_runtime.config.checks import check, check_positive

Precision = Literal["fp32", "bf16", "fp16"]
VALUE_BYTES: dict[Precision, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
Recompute = Literal["none", "selective", "full"]
Documents = Literal["joined", "separate"]
Zero = Literal[1, 3]
OuterCodec = Literal["none", "int8", "int4"]
BYTE_VALUES = 256  # text read as bytes needs one vocabulary entry per byte value


@dataclass(frozen=True)
class EmulationSettings:
    """Seconds one layer sleeps per sample instead of computing; `slowdown` multiplies them by cluster."""

    forward_s_per_layer: float
    backward_s_per_layer: float
    slowdown: dict[str, float]

    def __post_init__(self) -> None:
        for key in ("forward_s_per_layer", "backward_s_per_layer"):
            check(key, getattr(self, key), "must not be negative", getattr(self, key) >= 0)
        for cluster, factor in self.slowdown.items():
            check(f"slowdown.{cluster}", factor, "must be positive", factor > 0)

    def on(self, cluster: str, samples: int) -> EmulationSettings:
        """Return the seconds of so many samples on hosts of `cluster`, with its slowdown applied."""
        factor = samples * self.slowdown.get(cluster, 1.0)
        return EmulationSettings(self.forward_s_per_layer * factor, self.backward_s_per_layer * factor, {})


@dataclass(frozen=True)
class DataSource:
    """A file or a directory of a blend; its share of the samples is `weight` over the sum of all weights."""

    path: str
    weight: float

    def __post_init__(self) -> None:
        check_positive(self, "weight")


@dataclass(frozen=True)
class DataSettings:
    """A file, or a directory whose files matching `pattern` (not recursive, by name) are joined; or several, blended.

    Read by file name: .bin as Megatron tokens, .jsonl and all else as text; text becomes bytes, or the tokens of
    `tokenizer`, a `tokenizers` file. Where `documents` are separate, attention does not cross their borders. The last
    `validation_fraction` of each source is for evaluation. With `bytes`, files that are not text are read as they are.
    Up to `skip_bad_lines` lines or rows of all files may hold no document. `expected_tokenizer` is the one that text
    needs where the model's tokens are not bytes; None where they are, or may be.
    """

    path: str | tuple[DataSource, ...]
    pattern: str
    tokenizer: str | None
    documents: Documents
    validation_fraction: float
    bytes: bool
    expected_tokenizer: str | None
    skip_bad_lines: int

    def __post_init__(self) -> None:
        fraction, paths = self.validation_fraction, [source.path for source in self.sources]
        check("validation_fraction", fraction, "must be in [0, 1)", 0 <= fraction < 1)
        check("path", paths, "must name sources, each once", 0 < len(set(paths)) == len(paths))
        check("skip_bad_lines", self.skip_bad_lines, "must not be negative", self.skip_bad_lines >= 0)

    @property
    def sources(self) -> tuple[DataSource, ...]:
        """The sources of a blend, or the only source."""
        return (DataSource(self.path, 1.0),) if isinstance(self.path, str) else self.path

    @property
    def is_bytes(self) -> bool:
        """True if some text is read as bytes, judged by the names of files."""
        is_text = not all(source.path.endswith(".bin") for source in self.sources)
        return self.tokenizer is None and is_text and not self.pattern.endswith(".bin")


@dataclass(frozen=True)
class EvaluationSettings:
    """Loss on the same `num_batches` global batches of the validation data, after every `every_steps` steps."""

    every_steps: int
    num_batches: int

    def __post_init__(self) -> None:
        check_positive(self, "every_steps", "num_batches")


@dataclass(frozen=True)
class ProfileSettings:
    """The steps that are recorded in traces: `steps` steps, after the first `after` of an attempt."""

    steps: int
    after: int

    def __post_init__(self) -> None:
        check_positive(self, "steps")
        check("after", self.after, "must not be negative", self.after >= 0)


@dataclass(frozen=True)
class CheckpointSettings:
    """A folder on each host, saved to after every `every_steps` steps and the last; `keep_last` are kept.

    Where hosts do not share one folder, `copies` of them hold each shard.
    """

    path: str
    every_steps: int
    keep_last: int
    copies: int

    def __post_init__(self) -> None:
        check_positive(self, "every_steps", "keep_last", "copies")


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
        highest, lowest, clip = self.learning_rate, self.min_learning_rate, self.grad_clip
        check_positive(self, "learning_rate")
        check("min_learning_rate", lowest, f"must be in [0, learning_rate {highest}]", 0 <= lowest <= highest)
        check("warmup_steps", self.warmup_steps, "must not be negative", self.warmup_steps >= 0)
        check("weight_decay", self.weight_decay, "must not be negative", self.weight_decay >= 0)
        check("beta1", self.beta1, "must be in [0, 1)", 0 <= self.beta1 < 1)
        check("beta2", self.beta2, "must be in [0, 1)", 0 <= self.beta2 < 1)
        check("grad_clip", clip, "must be positive", clip is None or clip > 0)


@dataclass(frozen=True)
class OuterSync:
    """The outer syncs of this run, island number `island` of `num_islands`, with the others.

    In a round of `inner_steps` inner steps, an island exchanges its pseudo-gradient, packed by `codec`, in as many
    `fragments`, one after the other. The mean is applied `delay_steps` after it was sent, by an outer step with
    Nesterov `momentum` at `outer_rate`. All islands together take `round_samples` samples in a round; this island's own
    come after `samples_before` of others. An outer sync closes with the islands that arrived within `grace_s` after the
    first, and with at least `quorum`. `interfaces` lead from the ranks to the other islands, and `streams` are the
    connections to each rank there.
    """

    island: int
    num_islands: int
    inner_steps: int
    samples_before: int
    round_samples: int
    codec: OuterCodec
    fragments: int
    delay_steps: int
    outer_rate: float
    momentum: float
    grace_s: float
    quorum: int
    interfaces: tuple[str, ...]
    streams: int

    def __post_init__(self) -> None:
        check_positive(
            self, "num_islands", "inner_steps", "round_samples", "fragments", "outer_rate", "grace_s", "streams"
        )
        last = self.num_islands - 1
        check("island", self.island, f"must be in [0, {last}]", 0 <= self.island <= last)
        check("samples_before", self.samples_before, "must not be negative", self.samples_before >= 0)
        rule = f"must be at most inner_steps {self.inner_steps}"
        check("fragments", self.fragments, rule, self.fragments <= self.inner_steps)
        apart = self.inner_steps // self.fragments
        rule = f"must be in [0, {apart}], the steps between two exchanges"
        check("delay_steps", self.delay_steps, rule, 0 <= self.delay_steps <= apart)
        check("momentum", self.momentum, "must be in [0, 1)", 0 <= self.momentum < 1)
        rule = f"must be in [1, {self.num_islands}], as many as there are islands"
        check("quorum", self.quorum, rule, 1 <= self.quorum <= self.num_islands)


@dataclass(frozen=True)
class Expectation:
    """The plan's predictions, as the measure for slow hosts and links.

    compute_s: seconds one micro-batch computes, by rank, forward and backward of all its stages; empty if not known.
    transfer_s: seconds of one message of activations, by the name of the edge's group. bytes_per_s: that group's share
    of the wire while all edges are loaded, by the same names.
    """

    compute_s: tuple[float, ...]
    transfer_s: dict[str, float]
    bytes_per_s: dict[str, float]
