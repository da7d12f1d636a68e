"""Published measurements of training steps, with their sources: what `benchmarks.validation` predicts.

Values are as published. Where only TFLOP/s per GPU is given, the seconds follow from the publication's own FLOP
formula. What a publication does not say (micro-batch size in V1 and V6) is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_settings import Recompute


@dataclass(frozen=True)
class Measurement:
    """One measured step: the model, how it was cut, and what came of it. `gpu` is a machine type of gpu_speeds."""

    table: str
    name: str
    gpu: str
    model: ModelShape
    tp: int
    pp: int
    dp: int
    global_batch_size: int
    micro_batch_size: int | None
    chunks: int
    recompute: Recompute
    step_s: float
    memory_gb: float | None = None


SOURCES = {
    "V1": "Megatron-LM README, weak scaling on A100, April 2021; heads and micro-batch sizes are not published there",
    "V2": "Narayanan et al., Megatron-LM, SC 2021, table 2, PTD parallelism, A100",
    "V3": "Korthikanti et al., Reducing Activation Recomputation, 2022, table 5, A100-80",
    "V4": "vTrain validation data, multi node, A100, Megatron-DeepSpeed (MIT licence): the 3.6B and 39.1B rows",
    "V5": "Sailor artifact, measured OPT-350M steps on GH200-96, 4 a node, fp32 (MIT licence)",
    "V7": "Megatron-LM README, 2020, tensor parallelism on A100; heads and micro-batch sizes are not published there",
    "V6": "Megatron-Core README, weak scaling on H100, 2024; micro-batch sizes are not published there",
}


def gpt(
    hidden_size: int, num_layers: int, num_heads: int, seq_length: int = 2048, vocab_size: int = 51200
) -> ModelShape:
    """A GPT of that shape."""
    return ModelShape(
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        seq_length=seq_length,
        vocab_size=vocab_size,
    )


def published_flops(model: ModelShape, global_batch_size: int, recompute: Recompute) -> float:
    """The FLOPs of a step by which publications state TFLOP/s: 72, or 96 with full recomputation, B s L h^2 (...)."""
    h, s, factor = model.hidden_size, model.seq_length, 96 if recompute == "full" else 72
    ends = model.vocab_size / (factor / 6 * model.num_layers * h)
    return factor * global_batch_size * s * model.num_layers * h**2 * (1 + s / (6 * h) + ends)


# name, h, layers, heads (not published: h / 128), t * p, GPUs, global batch, TFLOP/s a GPU
_V1 = (
    ("1.7B", 2304, 24, 1, 32, 512, 137),
    ("3.6B", 3072, 30, 2, 64, 512, 138),
    ("7.5B", 4096, 36, 4, 128, 512, 142),
    ("18.4B", 6144, 40, 8, 256, 1024, 135),
    ("39.1B", 8192, 48, 16, 512, 1536, 138),
    ("76.1B", 10240, 60, 32, 1024, 1792, 140),
    ("145.6B", 12288, 80, 64, 1536, 2304, 148),
    ("310.1B", 16384, 96, 128, 1920, 2160, 155),
    ("529.6B", 20480, 105, 280, 2520, 2520, 163),
    ("1008B", 25600, 128, 512, 3072, 3072, 163),
)

# name, h, layers, heads, p, GPUs, global batch, TFLOP/s a GPU; t is 8 and b is 1
_V2 = (
    ("174.6B", 12288, 96, 96, 12, 384, 1536, 153),
    ("174.6B", 12288, 96, 96, 12, 768, 1536, 149),
    ("174.6B", 12288, 96, 96, 12, 1536, 1536, 141),
    ("529.6B", 20480, 105, 128, 35, 560, 2240, 171),
    ("529.6B", 20480, 105, 128, 35, 1120, 2240, 167),
    ("529.6B", 20480, 105, 128, 35, 2240, 2240, 159),
)

# name, h, layers, heads, p, chunks, global batch, micro-batch, seconds with full and with selective recomputation
_V3 = (
    ("22B", 6144, 48, 64, 1, 1, 4, 4, 1.42, 1.10),
    ("530B", 20480, 105, 128, 35, 3, 280, 1, 49.05, 37.83),
)

# tp/dp/pp/micro-batch seconds
_V4_3_6B = """
1/32/2/2 4.03; 1/32/2/4 4.38; 1/32/2/8 5.05; 1/64/1/2 3.70; 1/64/1/4 3.64; 1/64/1/8 3.57; 2/32/1/2 4.26;
2/32/1/4 4.08; 2/32/1/8 3.98; 2/32/1/16 3.94; 4/16/1/2 6.23; 4/16/1/4 4.76; 4/16/1/8 4.63; 4/16/1/16 4.49;
4/16/1/32 4.55; 8/8/1/2 8.88; 8/8/1/4 5.62; 8/8/1/8 5.18; 8/8/1/16 5.02; 8/8/1/32 4.97; 8/8/1/64 9.84;
16/4/1/2 13.47; 16/4/1/4 11.96; 16/4/1/8 10.89; 16/4/1/16 10.72; 16/4/1/32 10.58
"""
_V4_39_1B = """
1/32/16/3 19.99; 2/16/16/2 23.75; 2/16/16/3 26.19; 2/16/16/6 27.23; 2/32/8/2 21.89; 2/32/8/3 19.07; 2/32/8/6 23.06;
4/8/16/2 14.53; 4/8/16/3 15.02; 4/8/16/4 15.59; 4/8/16/6 20.04; 4/8/16/12 27.81; 4/16/8/2 16.07; 4/16/8/3 17.61;
4/16/8/4 17.41; 4/16/8/6 16.09; 4/16/8/12 20.61; 4/32/4/2 13.88; 4/32/4/3 16.19; 4/32/4/4 15.63; 4/32/4/6 18.53;
8/4/16/2 15.64; 8/4/16/3 16.36; 8/4/16/4 15.94; 8/4/16/6 16.23; 8/4/16/8 16.88; 8/4/16/12 18.57; 8/4/16/24 24.17;
8/8/8/2 15.00; 8/8/8/3 15.27; 8/8/8/4 14.97; 8/8/8/6 15.78; 8/8/8/8 16.41; 8/8/8/12 18.00; 8/8/8/24 23.17;
8/16/4/2 14.71; 8/16/4/3 14.83; 8/16/4/4 14.75; 8/16/4/6 15.25; 8/16/4/8 15.81; 8/16/4/12 17.18;
8/32/2/2 14.61; 8/32/2/3 14.85; 8/32/2/4 14.76; 8/32/2/6 14.92; 8/32/2/8 15.21; 8/32/2/12 17.13
"""

# p, d, micro-batch, global batch, seconds, peak GB; t is 4
_V5 = (
    (1, 1, 1, 1, 0.074, 9.6),
    (1, 1, 1, 32, 2.281, 9.8),
    (2, 1, 8, 32, 0.657, 26.9),
    (1, 2, 2, 32, 0.805, 12.5),
    (4, 1, 1, 64, 1.602, 7.4),
    (2, 2, 1, 64, 1.445, 8.0),
    (1, 4, 4, 128, 1.235, 19.2),
    (4, 2, 8, 512, 2.698, 25.2),
    (2, 4, 8, 512, 2.299, 26.9),
    (4, 4, 8, 1024, 2.726, 25.1),
    (2, 8, 8, 1024, 2.311, 26.9),
    (1, 16, 8, 1024, 1.926, 32.6),
    (4, 8, 8, 1024, 1.475, 25.2),
    (2, 16, 8, 1024, 1.225, 27.0),
    (1, 32, 8, 1024, 1.026, 33.0),
)

# name, h, layers, t, replicas, seconds; 16 samples a replica, sequences of 1024
_V7 = (
    ("1.2B", 1920, 24, 1, 1, 1.076),
    ("2.0B", 2304, 30, 2, 1, 1.026),
    ("4.2B", 3072, 36, 4, 1, 1.162),
    ("8.7B", 4096, 42, 8, 1, 1.343),
    ("1.2B", 1920, 24, 1, 128, 1.153),
    ("2.0B", 2304, 30, 2, 128, 1.101),
    ("4.2B", 3072, 36, 4, 128, 1.242),
    ("8.7B", 4096, 42, 8, 128, 1.380),
)

# name, heads, h, layers, t, p, GPUs, global batch, TFLOP/s a GPU
_V6 = (
    ("1.7B", 16, 2048, 24, 1, 1, 48, 192, 408.8),
    ("7.1B", 32, 4096, 30, 2, 1, 96, 192, 465.9),
    ("16B", 48, 6144, 32, 4, 1, 192, 192, 489.1),
    ("32B", 56, 7168, 48, 8, 1, 384, 192, 459.6),
    ("70B", 64, 8192, 84, 8, 2, 768, 384, 419.7),
    ("119B", 80, 10240, 92, 8, 4, 1536, 768, 420.5),
)


@lru_cache
def measurements() -> tuple[Measurement, ...]:
    """All rows, table by table, in the order of their publications."""
    return (*_v1(), *_v2(), *_v3(), *_v4(), *_v5(), *_v6(), *_v7())


def _v1() -> list[Measurement]:
    rows = []
    for name, h, layers, shards, gpus, batch, tflops in _V1:
        model, tp = gpt(h, layers, h // 128), min(8, shards)
        step_s = published_flops(model, batch, "full") / (gpus * tflops * 1e12)
        rows.append(
            Measurement("V1", name, "A100", model, tp, shards // tp, gpus // shards, batch, None, 1, "full", step_s)
        )
    return rows


def _v2() -> list[Measurement]:
    rows = []
    for name, h, layers, heads, pp, gpus, batch, tflops in _V2:
        model = gpt(h, layers, heads)
        step_s = published_flops(model, batch, "full") / (gpus * tflops * 1e12)
        rows.append(Measurement("V2", name, "A100", model, 8, pp, gpus // 8 // pp, batch, 1, 1, "full", step_s))
    return rows


def _v3() -> list[Measurement]:
    rows = []
    for name, h, layers, heads, pp, chunks, batch, micro, full_s, selective_s in _V3:
        model = gpt(h, layers, heads)
        seconds: tuple[tuple[Recompute, float], ...] = (("full", full_s), ("selective", selective_s))
        for recompute, step_s in seconds:
            rows.append(Measurement("V3", name, "A100", model, 8, pp, 1, batch, micro, chunks, recompute, step_s))
    return rows


def _v4() -> list[Measurement]:
    rows = []
    for name, model, batch, text in (
        ("3.6B", gpt(3072, 30, 32), 512, _V4_3_6B),
        ("39.1B", gpt(8192, 48, 64), 1536, _V4_39_1B),
    ):
        for entry in text.split(";"):
            cut, seconds = entry.split()
            tp, dp, pp, micro = (int(degree) for degree in cut.split("/"))
            rows.append(Measurement("V4", name, "A100", model, tp, pp, dp, batch, micro, 1, "full", float(seconds)))
    return rows


def _v5() -> list[Measurement]:
    model = gpt(1024, 24, 16, vocab_size=50272)
    return [
        Measurement("V5", "OPT-350M", "GH200", model, 4, pp, dp, batch, micro, 1, "none", step_s, memory_gb)
        for pp, dp, micro, batch, step_s, memory_gb in _V5
    ]


def _v6() -> list[Measurement]:
    rows = []
    for name, heads, h, layers, tp, pp, gpus, batch, tflops in _V6:
        model = gpt(h, layers, heads, 4096, 131072)
        chunks = layers // pp if pp > 1 else 1  # assumption: overlapped messages need interleaving, at its finest
        step_s = published_flops(model, batch, "none") / (gpus * tflops * 1e12)
        rows.append(
            Measurement("V6", name, "H100", model, tp, pp, gpus // tp // pp, batch, None, chunks, "none", step_s)
        )
    return rows


def _v7() -> list[Measurement]:
    rows = []
    for name, h, layers, tp, dp, step_s in _V7:
        model = gpt(h, layers, h // 128, seq_length=1024)
        rows.append(Measurement("V7", name, "A100", model, tp, 1, dp, 16 * dp, None, 1, "full", step_s))
    return rows
