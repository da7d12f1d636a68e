"""How large the jobs of the steps are: as GPUs want them, or tiny for CPUs."""

from __future__ import annotations

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
TWO: Mapping[str, Job] = {
    "pp2-1f1b": {"pp": 2, "schedule": "1f1b"},
    "pp2-gpipe": {"pp": 2, "schedule": "gpipe"},
    "pp2-eager": {"pp": 2, "schedule": "eager"},
    "pp2-interleaved": {"pp": 2, "schedule": "interleaved", "chunks": 2},
    "pp2-zero-bubble": {"pp": 2, "schedule": "zero-bubble"},
    "tp2": {"tp": 2},
    "dp2": {"dp": 2},
    "dp2-zero3": {"dp": 2, "zero": 3},
}
EIGHT: Mapping[str, Job] = {
    "dp8": {"dp": 8},
    "tp8": {"tp": 8},
    "tp2-pp2-dp2": {"tp": 2, "pp": 2, "dp": 2},
    "pp4-interleaved-dp2": {"pp": 4, "dp": 2, "schedule": "interleaved", "chunks": 2},
    "pp8-zero-bubble": {"pp": 8, "schedule": "zero-bubble"},
    "dp8-zero3": {"dp": 8, "zero": 3},
}


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

    def job(self, corpus: str, device: Device) -> Job:
        """The small job on `corpus`, in fp32."""
        return {
            "model": self.model,
            "data": {"path": corpus, "bytes": True},
            "global_batch_size": self.global_batch_size,
            "steps": self.steps,
            "device": device,
            "precision": "fp32",
            "optimizer": {"learning_rate": 1e-3},
            "timeout_s": 600,
            "compute": {"flops_per_s": 1e10},  # of fp32 nothing is known on GPUs; times are not judged
        }

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
        "hidden_size": 1024,
        "num_heads": 8,
        "ffn_hidden_size": 2816,
        "seq_length": 256,
    },
    steps=20,
    global_batch_size=16,
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
    calibrate_s=10.0,
)
TINY_MODEL = {"family": "llama", "num_layers": 2, "hidden_size": 32, "num_heads": 2, "seq_length": 16}
TINY = Scale(
    model=TINY_MODEL,
    steps=3,
    global_batch_size=8,
    two={name: TWO[name] for name in ("pp2-1f1b",)},
    eight={"dp8": EIGHT["dp8"]},
    large={"model": {**TINY_MODEL, "vocab_size": 300}, "parallel": ONE_RANK},
    largest={"model": TINY_MODEL, "parallel": ONE_RANK},
    calibrate_s=0.05,
)
SCALES: Mapping[Device, Scale] = {"cuda": ON_GPUS, "cpu": TINY}
