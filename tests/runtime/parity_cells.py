"""The plans of the parity matrix: degrees, schedule, recomputation, precision, family, unequal micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holmes_runtime.config.codec import Codec
from holmes_runtime.config.model_shape import RopeScaling
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import Precision, Recompute, TeacherSettings, Zero
from holmes_runtime.config.schedule import ScheduleName
from holmes_runtime.config.trainable import Lora, Matrix

from .launched_runs import REPOSITORY, TINY, layout, make_config

GPT = replace(TINY, num_heads=8, num_kv_heads=8, ffn_hidden_size=96, vocab_size=257, seq_length=16)
LLAMA = replace(GPT, family="llama", num_kv_heads=4, ffn_hidden_size=64)
SHAPES = {
    "gpt": GPT,
    "own": replace(GPT, factory=f"{REPOSITORY}/examples/own-model-file/own_model.py:build"),
    "llama": LLAMA,
    "tied-gpt": replace(GPT, tied_embeddings=True),
    "tied-llama": replace(LLAMA, tied_embeddings=True, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 64)),
    "qwen": replace(LLAMA, head_dim=6, qkv_bias=True, qk_norm=True, norm_eps=1e-6, tied_embeddings=True),
    "mixtral": replace(LLAMA, experts=4, experts_per_token=2, expert_ffn=24),
    "tied-mixtral": replace(LLAMA, experts=4, experts_per_token=2, expert_ffn=24, tied_embeddings=True),
}
TARGETS: dict[str, tuple[Matrix, ...]] = {
    "gpt": ("qkv", "projection", "up", "down"),
    "llama": ("query", "key", "value", "projection", "gate", "up", "down"),
}
STEPS = 3
Codecs = tuple[Codec, Codec]
# Small, since AdamW's first steps go by the sign of a gradient, and rounding may turn the sign of one that is nearly 0.
LEARNING_RATE = 1e-3
UNEVEN_CUTS = {2: (0, 3, 5), 3: (0, 1, 4, 5), 4: (0, 1, 3, 4, 5), 8: tuple(range(9))}


@dataclass(frozen=True)
class Cell:
    """One plan; its degrees are tensor, pipeline, data.

    `twice`: it is run twice, to see whether bits differ. `codecs`: those of activations and of gradients on edges;
    from the second step on `later`, if there is one, and then eager also has one more micro-batch in flight.
    `clusters` names that of each rank with a letter, where data parallelism is hierarchical. `separate`: attention
    stays inside documents, the lines of a .jsonl in the same folder; with `examples`, packed ones, and some of their
    tokens are only read; with `taught`, a teacher knows others. `tied` are the ranks that own the same piece of a tied
    table, where they are not the ends of one replica. `cp` replicas share each sequence, and there
    are `dp` times `cp`; `microbatches` has one number for all that share them. `ep` ranks share experts. With `lora`
    adapters alone are trained.
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
    separate: bool = False
    examples: bool = False
    zero: Zero = 1
    tied: tuple[tuple[int, int], ...] | None = None
    offload: bool = False
    num_layers: int = 5
    cp: int = 1
    ep: int = 1
    balance: float = 0.05
    lora: bool = False
    taught: bool = False

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.replicas

    @property
    def replicas(self) -> int:
        return self.dp * self.cp

    @property
    def samples(self) -> int:
        """The micro-batches of all replicas."""
        return sum(self.microbatches) or (8 if self.tp == 1 else 4)

    def __str__(self) -> str:
        parts = [f"t{self.tp}p{self.pp}d{self.dp}", self.schedule, self.family, self.recompute, self.value_type]
        if self.chunks > 1:
            parts.append(f"chunks{self.chunks}")
        if self.microbatches:
            parts.append("x".join(map(str, self.microbatches)))
        if self.is_packed:
            parts.append("+".join(self.codecs))
        if self.later is not None:
            parts.append("later-" + "+".join(self.later))
        if self.clusters:
            parts.append(self.clusters)
        parts += [f"zero{self.zero}"] * (self.zero > 1)
        marks = {"compiled": self.compiled, "documents": self.separate, "examples": self.examples}
        marks |= {"offload": self.offload, f"cp{self.cp}": self.cp > 1, f"ep{self.ep}": self.ep > 1, "lora": self.lora}
        marks["taught"] = self.taught
        return "-".join((*parts, *(name for name, is_on in marks.items() if is_on)))

    @property
    def is_packed(self) -> bool:
        """Whether a message is ever packed."""
        return {*self.codecs, *(self.later or ())} != {"none"}

    def config(self, corpus: Path, step: int = 0) -> RunConfig:
        """The run of this plan as it is at `step`: 8 micro-batches a step unless said otherwise.

        Tensor shards have 4: each sends thousands of messages a step.
        """
        is_later = step > 0 and self.later is not None
        extra: Sequence[int] = [1 + is_later] * (self.pp - 1) if self.schedule == "eager" else ()
        shares = self.microbatches or [self.samples // self.dp] * self.dp
        forward, backward = self.later if is_later and self.later is not None else self.codecs
        return make_config(
            corpus.parent / ("examples.bin" if self.examples else "text.jsonl" if self.separate else corpus.name),
            documents="separate" if self.separate or self.examples else "joined",
            cuts=UNEVEN_CUTS.get(self.pp * self.chunks, (0, self.num_layers)),
            shards=layout(self.tp, self.pp, self.replicas),
            model=replace(SHAPES[self.family], num_layers=self.num_layers),
            steps=STEPS,
            micro_batch_size=self.micro_batch_size,
            microbatches=[share for share in shares for _ in range(self.cp)],
            cp=self.cp,
            schedule=self.schedule,
            chunks=self.chunks,
            extra_in_flight=extra,
            recompute=self.recompute,
            optimizer_offload=self.offload,
            value_type=self.value_type,
            compile_blocks=self.compiled,
            learning_rate=LEARNING_RATE,
            codecs={"pp_forward": forward, "pp_backward": backward},
            clusters=self.clusters,
            zero=self.zero,
            tied=self.tied,
            ep=self.ep,
            lora=Lora(
                rank=4,
                targets=TARGETS[self.family if "mixtral" in self.family else SHAPES[self.family].family],
                alpha=128.0,
            )
            if self.lora
            else None,
            teacher=TeacherSettings(0.75, 2.0) if self.taught else None,
            router_balance=self.balance if "mixtral" in self.family else 0.0,
        )

    def alone(self) -> Cell:
        """The same training on one process."""
        one = replace(self, tp=1, pp=1, dp=1, schedule="1f1b", chunks=1, microbatches=(self.samples,))
        one = replace(one, recompute="none", compiled=False, codecs=("none", "none"), later=None)
        return replace(one, clusters="", zero=1, tied=(), offload=False, cp=1, ep=1)


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
            num_layers=8 if pp * chunks == 8 else 5,
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
    Cell(1, 1, 2, offload=True, twice=True),
    Cell(1, 2, 1, "zero-bubble", "llama", value_type="bf16", offload=True),
    Cell(1, 2, 1, "zero-bubble", value_type="bf16"),
    Cell(2, 1, 1, micro_batch_size=2),
    Cell(2, 1, 1, family="llama", recompute="selective"),
    Cell(2, 1, 1, family="llama", recompute="selective", compiled=True, separate=True),
    Cell(2, 1, 1, recompute="full", value_type="bf16"),
    Cell(1, 3, 1, family="llama"),
    Cell(1, 3, 1, "zero-bubble"),
    Cell(1, 1, 3, microbatches=(1, 2, 5)),
    *_all_schedules(1, 4, 1, ["llama", "gpt"], ()),
    *_all_schedules(1, 2, 2, ["gpt", "llama"], (2, 6)),
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
    Cell(2, 1, 2, recompute="selective", clusters="aabb", offload=True),
    Cell(1, 1, 6, microbatches=(1, 2, 1, 1, 2, 1), clusters="aabbcc"),
    # The ceiling and the floor of what a batch leaves each replica: fewer than stages.
    Cell(1, 2, 3, "zero-bubble", microbatches=(2, 1, 1)),
    Cell(1, 2, 3, "eager", "llama", microbatches=(3, 3, 2)),
    *_all_schedules(2, 2, 2, ["gpt", "llama"], (2, 6)),
    # The replicas of the first stage are in two clusters, those of the second in one.
    Cell(1, 2, 4, "zero-bubble", microbatches=(1, 3, 2, 2), clusters="aabbcccc"),
    Cell(2, 1, 4, family="llama", clusters="aaaabbbb"),
    Cell(1, 8, 1, num_layers=8),
    Cell(1, 4, 2, "zero-bubble", "llama", microbatches=(3, 5), twice=True),
    Cell(2, 4, 1, "zero-bubble"),
    Cell(1, 2, 4, "interleaved", chunks=2),
    Cell(2, 2, 2, "interleaved", "llama", chunks=2, value_type="bf16"),
    Cell(1, 1, 2, family="llama", zero=3, twice=True),
    Cell(1, 1, 2, family="llama", recompute="full", zero=3),
    Cell(1, 1, 2, value_type="bf16", zero=3),
    Cell(1, 1, 2, value_type="fp16", family="llama", recompute="selective", zero=3),
    Cell(1, 1, 2, family="llama", compiled=True, zero=3),
    Cell(1, 1, 4, recompute="full", value_type="bf16", zero=3),
    Cell(1, 1, 4, family="llama", microbatches=(1, 1, 3, 3), clusters="aabb", zero=3, twice=True),
    Cell(1, 1, 4, value_type="bf16", clusters="abba", zero=3),
    Cell(2, 1, 2, family="llama", zero=3),
    Cell(2, 1, 2, recompute="full", zero=3),
    Cell(1, 2, 2, "gpipe", recompute="full", zero=3),
    Cell(1, 2, 2, "1f1b", "llama", zero=3),
    Cell(1, 2, 2, "eager", recompute="selective", zero=3),
    Cell(1, 2, 2, "interleaved", "llama", "full", chunks=2, zero=3),
    Cell(1, 2, 2, "interleaved", "own", chunks=2, zero=3),
    Cell(2, 2, 2, "interleaved", "llama", "full", chunks=2, zero=3),
    Cell(2, 1, 4, microbatches=(1, 1, 3, 3), clusters="aaaabbbb", zero=3),
    Cell(1, 2, 4, "1f1b", "llama", microbatches=(1, 1, 3, 3), clusters="aabbaabb", zero=3),
    Cell(1, 1, 2, family="tied-gpt"),
    Cell(1, 2, 1, family="tied-gpt", recompute="selective", offload=True),
    Cell(2, 1, 1, family="qwen", recompute="selective"),
    Cell(2, 2, 1, "zero-bubble", "tied-llama", recompute="selective", offload=True),
    *_all_schedules(1, 2, 1, ["tied-llama", "tied-gpt"], ()),
    Cell(2, 1, 1, family="tied-llama"),
    Cell(2, 1, 1, family="qwen"),
    Cell(1, 3, 1, family="qwen", value_type="bf16"),
    Cell(2, 2, 1, family="qwen"),
    Cell(1, 2, 2, family="tied-llama", microbatches=(3, 5), twice=True),
    Cell(1, 2, 2, "interleaved", "qwen", chunks=2, value_type="fp16"),
    Cell(2, 2, 2, "zero-bubble", "tied-gpt", microbatches=(4, 4)),
    # The replicas of the first stage own their pieces in another order than those of the second.
    Cell(1, 2, 4, family="tied-llama", clusters="aabbcccc", tied=((0, 4), (2, 5), (1, 6), (3, 7))),
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
    Cell(2, 2, 1, codecs=("int4", "int8")),
    # Not int4: where one crossing rounds a last bit the other way, the next two round many numbers otherwise.
    Cell(2, 2, 1, "interleaved", chunks=2, codecs=("int8", "int8")),
    Cell(1, 1, 2, separate=True),
    Cell(1, 2, 1, separate=True),
    Cell(1, 2, 1, "zero-bubble", "llama", recompute="selective", micro_batch_size=2, separate=True),
    Cell(2, 1, 1, separate=True),
    Cell(1, 3, 1, separate=True),
    Cell(1, 2, 2, "interleaved", chunks=2, recompute="full", microbatches=(2, 6), separate=True),
    Cell(2, 2, 1, "eager", "llama", separate=True),
    Cell(1, 1, 2, value_type="bf16", separate=True),
    Cell(1, 1, 2, family="llama", microbatches=(3, 5), micro_batch_size=2, examples=True),
    Cell(1, 1, 2, value_type="fp16", examples=True),
    Cell(1, 2, 1, "zero-bubble", "llama", recompute="selective", examples=True),
    Cell(2, 1, 1, examples=True),
    Cell(1, 1, 2, family="mixtral", microbatches=(3, 5), twice=True),
    Cell(1, 1, 2, family="mixtral", recompute="selective", value_type="fp16"),
    Cell(1, 1, 2, family="mixtral", recompute="full", zero=3),
    Cell(1, 2, 1, "zero-bubble", "mixtral", recompute="selective"),
    Cell(1, 2, 1, "eager", "mixtral", recompute="full"),
    Cell(1, 2, 2, "interleaved", "mixtral", chunks=2, microbatches=(2, 6)),
    Cell(2, 1, 1, family="mixtral", micro_batch_size=2),
    Cell(2, 1, 1, family="mixtral", recompute="full", value_type="bf16"),
    Cell(2, 2, 1, "zero-bubble", "mixtral", recompute="selective"),
    Cell(2, 1, 2, family="mixtral", zero=3),
    Cell(1, 1, 2, family="mixtral", ep=2, twice=True),
    Cell(1, 1, 2, family="mixtral", recompute="selective", offload=True, ep=2),
    Cell(1, 1, 2, family="mixtral", recompute="full", value_type="fp16", ep=2),
    Cell(1, 1, 4, family="mixtral", ep=4),
    Cell(1, 1, 4, family="mixtral", recompute="full", ep=2, microbatches=(1, 1, 3, 3), twice=True),
    Cell(1, 1, 4, family="mixtral", ep=2, clusters="aabb", twice=True),
    Cell(1, 2, 2, "eager", "tied-mixtral", "selective", ep=2),
    Cell(1, 2, 2, "interleaved", "mixtral", chunks=2, ep=2),
    Cell(1, 2, 2, "zero-bubble", "mixtral", "selective", ep=2),
    Cell(2, 1, 2, family="mixtral", recompute="full", ep=4, offload=True),
    Cell(2, 2, 2, "zero-bubble", "mixtral", "selective", ep=4, clusters="aaaaaaaa"),
    Cell(1, 1, 1, family="mixtral", cp=2, ep=2, balance=0.0),
    Cell(1, 1, 1, family="mixtral", recompute="selective", compiled=True, value_type="bf16", cp=2, ep=2, balance=0.0),
    Cell(1, 1, 2, family="mixtral", recompute="selective", cp=2, ep=4, balance=0.0),
    Cell(1, 1, 2, family="llama", cp=2, examples=True),
    Cell(1, 1, 1, family="llama", cp=2, examples=True, taught=True),
    Cell(2, 2, 1, "zero-bubble", micro_batch_size=2, examples=True, taught=True),
    Cell(1, 1, 1, cp=2),
    Cell(1, 1, 1, family="qwen", cp=2, recompute="selective", twice=True),
    Cell(1, 1, 1, family="llama", cp=2, recompute="full", zero=3),
    Cell(1, 1, 1, family="llama", cp=2, micro_batch_size=2, separate=True, recompute="selective"),
    *(replace(cell, cp=2) for cell in _all_schedules(1, 2, 1, ["llama", "gpt"], ())),
    Cell(1, 1, 1, cp=4, separate=True),
    Cell(1, 1, 2, family="llama", cp=2, microbatches=(3, 5)),
    Cell(1, 1, 2, family="llama", cp=2, clusters="aabb", zero=3, recompute="selective"),
    Cell(2, 1, 1, family="qwen", cp=2, recompute="selective", separate=True),
    Cell(1, 2, 1, "zero-bubble", "tied-llama", cp=2, recompute="selective", separate=True),
    Cell(2, 2, 1, "zero-bubble", "llama", cp=2, recompute="selective"),
    Cell(1, 1, 2, family="llama", microbatches=(3, 5), twice=True, lora=True),
    Cell(1, 1, 1, family="llama", recompute="selective", cp=2, lora=True),
    Cell(1, 2, 1, "zero-bubble", "qwen", recompute="selective", offload=True, lora=True),
    Cell(1, 2, 1, "interleaved", "tied-gpt", recompute="full", chunks=2, lora=True),
    Cell(1, 2, 1, "eager", codecs=("int8", "int4"), lora=True),
    Cell(2, 1, 1, recompute="selective", lora=True),
    Cell(2, 1, 1, family="llama", recompute="full", lora=True),
    Cell(2, 2, 1, "zero-bubble", "tied-llama", lora=True),
]
