"""How large the jobs of the steps are: as GPUs want them, or tiny for CPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.on_gpus.machine import Device

Job = dict[str, Any]
ONE_RANK: Job = {"tp": 1, "pp": 1, "dp": 1}
LLAMA_1_3B = {
    "family": "llama",
    "num_layers": 24,
    "hidden_size": 2048,
    "num_heads": 16,
    "ffn_hidden_size": 5504,
    "vocab_size": 32000,
    "seq_length": 2048,
}
ADAPTED = ["query", "key", "value", "projection", "gate", "up", "down"]
LLAMA_BF16 = {"family": "llama", "rope_theta": 500000.0}
# No constant of the cost model was fitted to a run of one of these.
SHAPES: Mapping[str, Job] = {
    "gpt-1.3b": {
        "model": {"num_layers": 24, "hidden_size": 2048, "num_heads": 16, "seq_length": 2048, "vocab_size": 51200},
        "global_batch_size": 16,
    },
    "llama-3-8b-8-layers": {"model": {"preset": "llama-3-8b", "num_layers": 8}, "global_batch_size": 4},
    "qwen-like": {
        "model": {
            **LLAMA_BF16,
            **{"num_layers": 12, "hidden_size": 2560, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
            **{"ffn_hidden_size": 9728, "vocab_size": 151936, "seq_length": 4096, "qk_norm": True},
        },
        "global_batch_size": 8,
    },
    "long-32k": {
        "model": {
            **LLAMA_BF16,
            **{"num_layers": 16, "hidden_size": 2048, "num_heads": 16, "num_kv_heads": 8, "ffn_hidden_size": 8192},
            **{"vocab_size": 32000, "seq_length": 32768},
        },
        "global_batch_size": 1,
    },
    "small-batch": {"model": LLAMA_1_3B, "global_batch_size": 1},
    "tied-head": {"model": {"preset": "llama-3.2-1b"}, "global_batch_size": 4},
    "separate-documents": {
        "model": {**LLAMA_1_3B, "seq_length": 8192},
        "data": {"path": "/corpus.jsonl", "bytes": True, "documents": "separate"},
        "global_batch_size": 2,
    },
    "experts": {
        "model": {
            **LLAMA_BF16,
            **{"num_layers": 6, "hidden_size": 2048, "num_heads": 16, "experts": 64, "experts_per_token": 8},
            **{"expert_ffn": 1024, "vocab_size": 50304, "seq_length": 4096, "qk_norm": True},
        },
        "global_batch_size": 4,
    },
    "adapters": {
        "model": {"preset": "llama-3-8b", "num_layers": 8},
        "trainable": {"lora": {"rank": 16, "targets": ADAPTED}},
        "global_batch_size": 4,
    },
}
TWO: Mapping[str, Job] = {
    "pp2-1f1b": {"pp": 2, "schedule": "1f1b"},
    "pp2-gpipe": {"pp": 2, "schedule": "gpipe"},
    "pp2-eager": {"pp": 2, "schedule": "eager"},
    "pp2-interleaved": {"pp": 2, "schedule": "interleaved", "chunks": 2},
    "pp2-zero-bubble": {"pp": 2, "schedule": "zero-bubble"},
    "tp2": {"tp": 2},
    "cp2": {"cp": 2},
    "dp2": {"dp": 2},
    "dp2-zero3": {"dp": 2, "zero": 3},
}
EIGHT: Mapping[str, Job] = {
    "dp8": {"dp": 8},
    "tp8": {"tp": 8},
    "tp2-pp2-dp2": {"tp": 2, "pp": 2, "dp": 2},
    "tp2-pp2-cp2": {"tp": 2, "pp": 2, "cp": 2},
    "pp4-interleaved-dp2": {"pp": 4, "dp": 2, "schedule": "interleaved", "chunks": 2},
    "pp8-zero-bubble": {"pp": 8, "schedule": "zero-bubble"},
    "dp8-zero3": {"dp": 8, "zero": 3},
}


def small_text() -> str:
    """Return the text of the small job: counted numbers."""
    return json.dumps(list(range(60_000)))


@dataclass(frozen=True)
class Scale:
    """The small job of all comparisons, the layouts it is trained in, and what the large jobs change of it."""

    model: Job
    steps: int
    global_batch_size: int
    two: Mapping[str, Job]
    eight: Mapping[str, Job]
    large: Job
    largest: Job
    calibrate_s: float
    shapes: Mapping[str, Job]
    shape_steps: int
    shape_changes: Job

    def job(self, corpus: str, device: Device) -> Job:
        """The small job on `corpus`, in fp32."""
        return {
            "model": self.model,
            "data": {"path": corpus, "bytes": True},
            "global_batch_size": self.global_batch_size,
            "steps": self.steps,
            "device": device,
            "precision": "fp32",
            # Of 3e-6 and 1e-3 both, bf16 makes twenty times the difference: an update below the spacing of bf16 weights
            # is rounded away at first, and one far above it makes the job amplify rounding.
            "optimizer": {"learning_rate": 1e-4},
            "timeout_s": 600,
            "compute": {"flops_per_s": 1e10},  # of fp32 nothing is known on GPUs; times are not judged
        }

    def shape_job(self, name: str, corpus: str, device: Device, compiles: bool) -> Job:
        """Return the job of one of `shapes`, on one rank."""
        changes = {"steps": self.shape_steps, "parallel": ONE_RANK, "compile": compiles, **self.shape_changes}
        return {**self.job(corpus, device), **changes, **self.shapes[name]}

    def layouts(self, ranks: int) -> dict[str, Job]:
        """`parallel:` of job.yaml by name, every degree fixed, for so many ranks."""
        return {
            name: {**ONE_RANK, "micro_batch_size": 1, **fixed}
            for name, fixed in (self.two if ranks == 2 else self.eight).items()
        }


ON_GPUS = Scale(
    model={
        "family": "llama",
        "num_layers": 8,
        "hidden_size": 512,
        "num_heads": 8,
        "ffn_hidden_size": 1408,
        "seq_length": 256,
    },
    steps=8,
    global_batch_size=8,
    two=TWO,
    eight=EIGHT,
    large={
        "model": LLAMA_1_3B,
        "precision": "bf16",
        "global_batch_size": 16,
        "compute": {},
        "parallel": ONE_RANK,
    },
    largest={"model": {"preset": "llama-3-8b"}, "precision": "bf16", "global_batch_size": 64, "compute": {}},
    calibrate_s=4.0,
    shapes=SHAPES,
    shape_steps=8,
    shape_changes={"precision": "bf16", "compute": {}},
)
TINY_MODEL = {"family": "llama", "num_layers": 2, "hidden_size": 32, "num_heads": 2, "seq_length": 16}
TINY_SHAPES: Mapping[str, Job] = {
    "gpt-1.3b": {"model": {**TINY_MODEL, "family": "gpt"}},
    "llama-3-8b-8-layers": {"model": {**TINY_MODEL, "num_kv_heads": 1}},
    "qwen-like": {"model": {**TINY_MODEL, "num_kv_heads": 1, "head_dim": 32, "qk_norm": True}},
    "long-32k": {"model": {**TINY_MODEL, "seq_length": 64}, "global_batch_size": 1},
    "small-batch": {"model": TINY_MODEL, "global_batch_size": 1},
    "tied-head": {"model": {**TINY_MODEL, "tied_embeddings": True}},
    "separate-documents": {
        "model": TINY_MODEL,
        "data": {"path": "/corpus.jsonl", "bytes": True, "documents": "separate"},
    },
    "experts": {"model": {**TINY_MODEL, "experts": 4, "experts_per_token": 2, "expert_ffn": 32}},
    "adapters": {"model": TINY_MODEL, "trainable": {"lora": {"rank": 4, "targets": ADAPTED}}},
}
TINY = Scale(
    model=TINY_MODEL,
    steps=3,
    global_batch_size=8,
    two={name: TWO[name] for name in ("pp2-1f1b",)},
    eight={"dp4": {"dp": 4}},  # each rank imports torch
    large={"model": {**TINY_MODEL, "vocab_size": 300}, "parallel": ONE_RANK},
    largest={"model": TINY_MODEL, "parallel": ONE_RANK},
    calibrate_s=0.05,
    shapes={name: TINY_SHAPES[name] for name in ("gpt-1.3b", "qwen-like", "separate-documents")},
    shape_steps=4,
    shape_changes={},
)
SCALES: Mapping[Device, Scale] = {"cuda": ON_GPUS, "cpu": TINY}
