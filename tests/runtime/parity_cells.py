"""The plans of the parity matrix: degrees, schedule, recomputation, precision, family, unequal micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holmes_runtime.config.codec import Codec
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import Precision, Recompute
from holmes_runtime.config.schedule import ScheduleName

from .launched_runs import REPOSITORY, layout, make_config

SHAPES = {
    "gpt": ModelShape("gpt", 8, 32, 8, 8, 96, vocab_size=257, seq_length=16, rope_theta=1e4, factory=None),
    "own": ModelShape("gpt", 8, 32, 8, 8, 96, 257, 16, rope_theta=1e4, factory=f"{REPOSITORY}/docs/own_model.py:build"),
    "llama": ModelShape("llama", 8, 32, 8, 4, 64, vocab_size=257, seq_length=16, rope_theta=1e4, factory=None),
}
STEPS = 3
Codecs = tuple[Codec, Codec]
# Small, since AdamW's first steps go by the sign of a gradient, and rounding may turn the sign of one that is nearly 0.
LEARNING_RATE = 1e-3
UNEVEN_CUTS = {1: (0, 8), 2: (0, 5, 8), 3: (0, 1, 5, 8), 4: (0, 1, 4, 6, 8), 8: tuple(range(9))}


@dataclass(frozen=True)
class Cell:
    """One plan; its degrees are tensor, pipeline, data.

    `twice`: it is run twice, to see whether bits differ. `codecs`: those of activations and of gradients on edges;
    from the second step on `later`, if there is one, and then eager also has one more micro-batch in flight.
    `clusters` names that of each rank with a letter, where data parallelism is hierarchical.
    """

    tp: int
    pp: int
    dp: int
    schedule: ScheduleName = "1f1b"
    family: str = "gpt"
    recompute: Recompute = "none"
    value_type: Precision = "fp32"
    chunks: int = 1
    microbatches: tuple[int, ...] = ()
    micro_batch_size: int = 1
    compiled: bool = False
    twice: bool = False
    codecs: Codecs = ("none", "none")
    later: Codecs | None = None
    clusters: str = ""

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        parts = [f"t{self.tp}p{self.pp}d{self.dp}", self.schedule, self.family, self.recompute, self.value_type]
        if self.chunks > 1:
            parts.append(f"chunks{self.chunks}")
        if self.microbatches:
            parts.append("x".join(map(str, self.microbatches)))
        if self.compiled:
            parts.append("compiled")
        if self.is_packed:
            parts.append("+".join(self.codecs))
        if self.later is not None:
            parts.append("later-" + "+".join(self.later))
        if self.clusters:
            parts.append(self.clusters)
        return "-".join(parts)

    @property
    def is_packed(self) -> bool:
        """Whether a message is ever packed."""
        return {*self.codecs, *(self.later or ())} != {"none"}

    def config(self, corpus: Path, step: int = 0) -> RunConfig:
        """The run of this plan as it is at `step`: 8 micro-batches a step unless said otherwise."""
        is_later = step > 0 and self.later is not None
        extra: Sequence[int] = [1 + is_later] * (self.pp - 1) if self.schedule == "eager" else ()
        forward, backward = self.later if is_later and self.later is not None else self.codecs
        return make_config(
            corpus,
            cuts=UNEVEN_CUTS[self.pp * self.chunks],
            shards=layout(self.tp, self.pp, self.dp),
            model=SHAPES[self.family],
            steps=STEPS,
            micro_batch_size=self.micro_batch_size,
            microbatches=self.microbatches or [8 // self.dp] * self.dp,
            schedule=self.schedule,
            chunks=self.chunks,
            extra_in_flight=extra,
            recompute=self.recompute,
            value_type=self.value_type,
            compile_blocks=self.compiled,
            learning_rate=LEARNING_RATE,
            codecs={"pp_forward": forward, "pp_backward": backward},
            clusters=self.clusters,
        )

    def alone(self) -> Cell:
        """The same training on one process."""
        total = (sum(self.microbatches or (8,)),)
        one = replace(self, tp=1, pp=1, dp=1, schedule="1f1b", chunks=1, microbatches=total)
        return replace(one, recompute="none", compiled=False, codecs=("none", "none"), later=None, clusters="")


def _all_schedules(tp: int, pp: int, dp: int, families: Sequence[str], microbatches: tuple[int, ...]) -> list[Cell]:
    """Every schedule once, with families and recomputation in turn."""
    plain: list[tuple[ScheduleName, Recompute, int]] = [
        ("gpipe", "full", 1),
        ("1f1b", "selective", 1),
        ("eager", "none", 1),
        ("interleaved", "full", 2),
        ("zero-bubble", "selective", 1),
    ]
    return [
        Cell(
            tp,
            pp,
            dp,
            schedule,
            families[turn % len(families)],
            recompute,
            chunks=chunks,
            microbatches=microbatches,
        )
        for turn, (schedule, recompute, chunks) in enumerate(plain)
    ]


CELLS = [
    *_all_schedules(1, 2, 1, ["gpt"], ()),
    *_all_schedules(1, 2, 1, ["llama"], ()),
    Cell(1, 1, 2),
    Cell(1, 1, 2, family="llama", microbatches=(3, 5)),
    Cell(1, 1, 2, value_type="bf16"),
    Cell(1, 1, 2, value_type="fp16", family="llama"),
    Cell(1, 2, 1, "zero-bubble", value_type="bf16"),
    Cell(2, 1, 1, micro_batch_size=2),
    Cell(2, 1, 1, family="llama", recompute="selective"),
    Cell(2, 1, 1, family="llama", recompute="selective", compiled=True),
    Cell(2, 1, 1, recompute="full", value_type="bf16"),
    Cell(1, 3, 1, family="llama"),
    Cell(1, 3, 1, "zero-bubble"),
    Cell(1, 1, 3, microbatches=(1, 2, 5)),
    *_all_schedules(1, 4, 1, ["llama", "gpt"], ()),
    *_all_schedules(1, 2, 2, ["gpt", "llama"], (2, 6)),
    *_all_schedules(2, 2, 1, ["llama", "gpt"], ()),
    Cell(4, 1, 1, family="llama"),
    Cell(1, 2, 2, "interleaved", "own", chunks=2),
    Cell(1, 1, 4, value_type="bf16", family="llama"),
    Cell(2, 1, 2, recompute="selective", microbatches=(3, 5), twice=True),
    Cell(1, 2, 2, "eager", "llama", value_type="fp16"),
    Cell(1, 1, 2, clusters="ab"),
    Cell(1, 1, 4, clusters="aabb", twice=True),
    Cell(1, 1, 4, family="llama", microbatches=(1, 3, 2, 2), clusters="abab"),
    Cell(1, 1, 4, value_type="bf16", clusters="abba"),
    Cell(1, 1, 4, value_type="fp16", family="llama", clusters="aabb"),
    Cell(1, 2, 2, "interleaved", "llama", chunks=2, clusters="abab"),
    Cell(2, 1, 2, recompute="selective", clusters="aabb"),
    Cell(1, 1, 6, microbatches=(1, 2, 1, 1, 2, 1), clusters="aabbcc"),
    *_all_schedules(2, 2, 2, ["gpt", "llama"], (2, 6)),
    # The replicas of the first stage are in two clusters, those of the second in one.
    Cell(1, 2, 4, "zero-bubble", microbatches=(1, 3, 2, 2), clusters="aabbcccc"),
    Cell(2, 1, 4, family="llama", clusters="aaaabbbb"),
    Cell(1, 8, 1),
    Cell(1, 4, 2, "zero-bubble", "llama", microbatches=(3, 5), twice=True),
    Cell(4, 2, 1, "eager", "llama"),
    Cell(2, 4, 1, "zero-bubble"),
    Cell(8, 1, 1),
    Cell(1, 2, 4, "interleaved", chunks=2),
    Cell(2, 2, 2, "interleaved", "llama", chunks=2, value_type="bf16"),
    Cell(1, 2, 1, codecs=("int8", "int4")),
    Cell(1, 2, 1, "eager", "llama", codecs=("int4", "bf16")),
    Cell(1, 2, 1, "interleaved", chunks=2, codecs=("int8", "int8")),
    Cell(1, 2, 1, "zero-bubble", "llama", codecs=("bf16", "int4"), micro_batch_size=2, microbatches=(3,)),
    Cell(1, 2, 1, value_type="bf16", codecs=("int8", "int8")),
    Cell(1, 2, 1, "eager", codecs=("none", "none"), later=("int4", "int8")),
    Cell(1, 3, 1, codecs=("int4", "int8")),
    Cell(1, 3, 1, "eager", "llama", codecs=("int8", "int8"), later=("int4", "none")),
    Cell(1, 3, 1, "zero-bubble", codecs=("int8", "int4")),
    Cell(1, 2, 2, "eager", microbatches=(3, 5), codecs=("int8", "int4")),
    Cell(2, 2, 1, "zero-bubble", "llama", codecs=("int8", "int4")),
    Cell(2, 2, 1, "interleaved", chunks=2, codecs=("int4", "int8")),
]
