"""Published measurements of training steps, with their sources: what `benchmarks.validation` predicts.

Values are as published. Where only TFLOP/s per GPU is given, the seconds follow from the publication's own FLOP
formula. What a publication does not say (micro-batch size in V1 and V6) is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from holmes_core.records.model import PRESETS
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
    zero: int = 1
    compiles: bool = True
    layers: tuple[int, ...] = ()  # of each stage; empty: even
    ep: int = 1
    etp: int = 1
    cp: int = 1
    sends_once: bool = False  # the dispatcher of experts is DeepEP or HybridEP


SOURCES = {
    "V1": "Megatron-LM README, weak scaling on A100, April 2021; heads and micro-batch sizes are not published there",
    "V2": "Narayanan et al., Megatron-LM, SC 2021, table 2, PTD parallelism, A100",
    "V3": "Korthikanti et al., Reducing Activation Recomputation, 2022, table 5, A100-80",
    "V4": "vTrain validation data, multi node, A100, Megatron-DeepSpeed (MIT licence): the 3.6B and 39.1B rows",
    "V5": "Sailor artifact, measured OPT-350M steps on GH200-96, 4 a node, fp32 (MIT licence)",
    "V7": "Megatron-LM README, 2020, tensor parallelism on A100; heads and micro-batch sizes are not published there",
    "V6": "Megatron-Core README, weak scaling on H100, 2024; micro-batch sizes are not published there",
    "V8": "NVIDIA dgxc-benchmarking, nemo_megatron/README_175b.md, GPT-3 in NeMo on H100, bf16",
    "V9": "NVIDIA dgxc-benchmarking, nemotron/README_15b.md, NeMo on H100, bf16; its squared ReLU of 4 h is taken as "
    "SwiGLU of 8 h / 3",
    "V10": "BigScience, tr11-200B-ml/chronicles-prequel.md, rows of 25 and 26 February 2022, Megatron-DeepSpeed with "
    "ZeRO-1 in fp16 on 48 hosts of A100",
    "V11": "MosaicML llm-foundry, scripts/train/benchmarking/README.md, FSDP in full shards, eager, H100",
    "V12": "The same README, A100 of 80 GB",
    "V13": "The same README, A100 of 40 GB",
    "V14": "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 3, FSDP2 on H100 of 96 GB HBM2e at 500 W",
    "V15": "torchtitan, docs/performance.md of August 2024, FSDP2 on A100; its network is not published",
    "V16": "Sailor artifact, simulations/validation/clariden/GPT-NEO, measured as V5",
    "V17": "Mixtures of experts on H100 in bf16, routing forced to balance: NVIDIA Megatron-Bridge, "
    "docs/performance-summary-archive.md, 26.06, and yanring/Megatron-MoE-ModelZoo; seconds from tokens/s or TFLOP/s. "
    "235B ran DeepEP (`flex`), the row of ep 32 on a branch before its release, and GPT-OSS a dispatcher that is not "
    "published; the embedding and the head count as layers",
    "V18": "InternLM xtuner, docs/en/benchmark/megatron_moe_benchmark.md, of 2025: Qwen3-235B on 256 H800 in bf16, one "
    "stack of Megatron-Core, routing forced to balance; the network is not published, 8 x 400 Gbit/s is assumed",
    "V19": "NVIDIA dgxc-benchmarking v25.02, grok1/README_314b.md, Grok-1 and cuts of it in NeMo on H100, bf16; each "
    "expert is on the 4 tensor shards; its GELU with a gate is taken as SwiGLU",
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
# of each stage, without embedding and head
_V5_LAYERS = {1: (24,), 2: (11, 13), 4: (4, 7, 7, 6)}

# as _V5; the file of one more has the figures of OPT-350M's
_V16 = (
    (4, 4, 4, 1024, 7.03897, 37.3),
    (2, 8, 4, 1024, 6.4286, 44.0),
    (2, 1, 1, 1, 0.2079, 16.3),
    (2, 16, 4, 1024, 3.42667, 44.8),
    (4, 8, 4, 1024, 3.69588, 37.5),
    (4, 1, 1, 64, 2.50204, 15.8),
    (2, 2, 1, 64, 2.29028, 20.0),
    (4, 16, 4, 1024, 2.00042, 37.4),
    (8, 8, 4, 1024, 2.25506, 43.0),
    (4, 2, 4, 1024, 13.86466, 28.5),
    (2, 4, 4, 1024, 12.66101, 43.8),
)
_V16_LAYERS = {2: (15, 17), 4: (6, 9, 9, 8), 8: (2, 5, 5, 5, 4, 4, 4, 3)}

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

# GPUs, global batch, seconds; V8: t 4, p 8, 12 chunks, b 1; V9: t 4, p 1, b 4
_V8 = ((128, 256, 8.309), (256, 512, 8.408), (512, 1024, 8.42), (1024, 2048, 8.453), (2048, 4096, 8.49))
_V9 = ((16, 64, 2.812), (64, 256, 2.845), (256, 1024, 2.852), (1024, 4096, 2.895), (2048, 8192, 2.887))

# name, h, layers, heads; then t/p/d/b/B seconds
_V10 = (
    (
        "181B", 14336, 72, 64,
        """8/6/8/4/2048 114.11; 8/12/4/4/2048 117.07; 8/12/4/2/2048 128.82; 8/8/6/4/2016 113.16; 8/4/12/4/2016 114.81;
        8/4/12/2/2016 125.52; 8/2/24/2/2016 136.13; 8/2/24/1/2016 145.45; 4/12/8/4/2048 111.89; 4/12/8/2/2048 110.48;
        4/6/16/4/2048 117.11; 4/6/16/2/2048 111.71; 2/12/16/2/2048 112.5; 2/24/8/1/2048 119.53; 2/24/8/2/2048 122.75;
        4/24/4/1/2048 130.6""",
    ),
    ("177B", 12288, 96, 64, "1/48/8/1/2048 142.17"),
    ("182B", 13312, 84, 64, "4/12/8/2/2048 103.82; 4/12/8/4/2048 113.21; 8/6/8/2/2048 129.61"),
    (
        "182B", 13824, 78, 96,
        "4/12/8/2/512 35.77; 4/12/8/2/1024 59.65; 4/12/8/2/1536 83.11; 4/12/8/2/2048 107.12",
    ),
)  # fmt: skip

# h, layers, heads of MPT; then, by table and GPU: model, s, GPUs, b, recomputation, global batch, tokens/s a GPU
_MPT = {
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 64),
    "70b": (8192, 80, 64),
}
_FOUNDRY: dict[str, tuple[str, tuple[tuple[str, int, int, int, Recompute, int, int], ...]]] = {
    "V11": (
        "H100",
        (
            ("70b", 2048, 64, 8, "full", 2048, 1039),
            ("70b", 2048, 32, 2, "full", 1024, 882),
            ("30b", 2048, 32, 14, "full", 1344, 2308),
            ("30b", 2048, 16, 10, "full", 480, 2263),
            ("30b", 2048, 8, 3, "full", 504, 2002),
            ("30b", 4096, 8, 1, "full", 168, 1802),
            ("13b", 2048, 64, 2, "none", 128, 4800),
            ("13b", 2048, 8, 2, "none", 16, 4792),
            ("7b", 2048, 8, 6, "none", 48, 10643),
            ("7b", 4096, 8, 16, "full", 256, 8611),
            ("7b", 8192, 8, 8, "full", 128, 6935),
            ("7b", 32768, 8, 2, "full", 32, 3318),
            ("3b", 2048, 64, 6, "none", 1152, 22525),
            ("3b", 8192, 8, 3, "none", 144, 16578),
            ("1b", 2048, 64, 20, "none", 1280, 44402),
            ("1b", 2048, 8, 14, "none", 112, 45455),
        ),
    ),
    "V12": (
        "A100",
        (
            ("70b", 2048, 32, 2, "full", 1024, 373),
            ("30b", 2048, 8, 3, "full", 504, 916),
            ("13b", 16384, 8, 3, "full", 72, 1431),
            ("7b", 2048, 8, 6, "none", 96, 4641),
            ("7b", 8192, 8, 8, "full", 128, 3206),
        ),
    ),
    "V13": (
        "A100 40GB",
        (
            ("70b", 2048, 128, 4, "full", 512, 376),
            ("30b", 2048, 128, 6, "full", 768, 865),
            ("30b", 2048, 32, 4, "full", 128, 857),
            ("13b", 2048, 128, 16, "full", 2048, 1972),
            ("13b", 2048, 16, 10, "full", 160, 1993),
            ("7b", 2048, 128, 18, "full", 2304, 3623),
            ("3b", 2048, 128, 6, "none", 768, 9538),
        ),
    ),
}

_QWEN_235B = ModelShape(**PRESETS["qwen3-235b-a22b"])
_MIXTRAL_8X22B = ModelShape(
    family="llama", num_layers=56, hidden_size=6144, num_heads=48, num_kv_heads=8, ffn_hidden_size=16384,
    seq_length=4096, vocab_size=32000, experts=8, experts_per_token=2,
)  # fmt: skip
# name, model, (t, p, chunks, d, ep, cp), B, recomputation, seconds, layers of each stage where uneven, peak GB
_EVEN_235B = (2, *(3,) * 30, 2)  # of 32 stages; the embedding and the head count as layers
# (t, p, chunks, d, ep, cp), batch, recomputation, step s, layers, GB, DeepEP; micro-batches of one
_Degrees = tuple[int, int, int, int, int, int]
_V17: tuple[
    tuple[str, ModelShape, _Degrees, int, Recompute, float, tuple[int, ...], float | None, bool],
    ...,
] = (
    ("Qwen3-30B", ModelShape(**PRESETS["qwen3-30b-a3b"]), (1, 1, 1, 16, 16, 1), 1024, "none", 45.65, (), 61.351, False),
    (
        "GPT-OSS-120B",
        ModelShape(**PRESETS["gpt-oss-120b"]),
        (1, 4, 1, 16, 8, 1),
        1280,
        "selective",
        14.0659,
        (),
        None,
        False,
    ),
    ("Qwen3-235B", _QWEN_235B, (4, 8, 4, 8, 8, 1), 2048, "none", 29.0, _EVEN_235B, None, True),
    ("Mixtral-8x22B", _MIXTRAL_8X22B, (2, 8, 7, 8, 8, 1), 256, "none", 4.266, (), None, False),
    (
        *("Qwen3-235B s65536", replace(_QWEN_235B, seq_length=65536)),
        *((4, 8, 4, 2, 8, 4), 256, "selective", 76.79, _EVEN_235B, None, True),
    ),
    ("Qwen3-235B", _QWEN_235B, (2, 8, 4, 16, 32, 1), 2048, "selective", 19.7, _EVEN_235B, None, True),
)

# t, p, chunks, d, ep, b, batch, recomputation, step s, layers, DeepEP
_V18: tuple[tuple[int, int, int, int, int, int, int, Recompute, float, tuple[int, ...], bool], ...] = (
    (4, 8, 4, 8, 8, 1, 2048, "none", 35.481, _EVEN_235B, False),
    (2, 8, 4, 16, 32, 1, 2048, "selective", 35.392, _EVEN_235B, False),
    (2, 8, 4, 16, 32, 1, 2048, "selective", 25.73, _EVEN_235B, True),
    (2, 8, 1, 16, 8, 1, 2048, "selective", 27.555, (11, *(12,) * 6, 11), False),
    (2, 32, 1, 4, 8, 4, 8192, "full", 92.652, _EVEN_235B, False),
)

_GROK_1 = ModelShape(
    family="llama", num_layers=64, hidden_size=6144, num_heads=48, num_kv_heads=8, ffn_hidden_size=32768,
    seq_length=8192, vocab_size=128256, experts=8, experts_per_token=2,
)  # fmt: skip
# layers, p, chunks, d, ep, cp, s, step s; t and etp 4, micro-batches of one, batches of 1,024
_V19: tuple[tuple[int, int, int, int, int, int, int, float], ...] = (
    (2, 1, 1, 2, 2, 1, 4096, 24.0),
    (4, 1, 1, 8, 8, 1, 4096, 10.7),
    (16, 2, 8, 8, 8, 2, 8192, 20.73),
    (64, 8, 8, 8, 8, 2, 8192, 21.01),
)

# table, name, GPU, h, layers, heads, f, GPUs, b, recomputation, tokens/s a GPU, compiled; Llama 3, s 8,192
_TITAN: tuple[tuple[str, str, str, int, int, int, int, int, int, Recompute, int, bool], ...] = (
    ("V14", "8B", "H100 HBM2e", 4096, 32, 32, 14336, 128, 2, "selective", 6514, True),
    ("V14", "8B eager", "H100 HBM2e", 4096, 32, 32, 14336, 128, 2, "selective", 5605, False),
    ("V15", "8B", "A100", 4096, 32, 32, 14336, 64, 1, "selective", 2973, True),
    ("V15", "70B", "A100", 8192, 80, 64, 28672, 64, 1, "full", 331, True),
)


@lru_cache
def measurements() -> tuple[Measurement, ...]:
    """All rows, table by table, in the order of their publications."""
    megatron = (*_v1(), *_v2(), *_v3(), *_v4(), *_v5(), *_v6(), *_v7())
    return (*megatron, *_v8(), *_v9(), *_v10(), *_v11_to_13(), *_v14_and_15(), *_v16(), *_v17(), *_v18(), *_v19())


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
    return _sailor("V5", "OPT-350M", gpt(1024, 24, 16, vocab_size=50272), _V5, _V5_LAYERS)


def _v16() -> list[Measurement]:
    return _sailor("V16", "GPT-Neo-2.7B", gpt(2560, 32, 32, vocab_size=128256), _V16, _V16_LAYERS)


def _sailor(
    table: str,
    name: str,
    model: ModelShape,
    entries: Iterable[tuple[int, int, int, int, float, float]],
    layers: Mapping[int, tuple[int, ...]],
) -> list[Measurement]:
    rows = []
    for pp, dp, micro, batch, step_s, memory_gb in entries:
        fixed = (table, name, "GH200", model, 4, pp, dp, batch, micro)
        rows.append(Measurement(*fixed, 1, "none", step_s, memory_gb, layers=layers[pp]))
    return rows


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


def _v8() -> list[Measurement]:
    model = gpt(12288, 96, 96)
    return [
        Measurement("V8", "175B", "H100", model, 4, 8, gpus // 32, batch, 1, 12, "none", step_s)
        for gpus, batch, step_s in _V8
    ]


def _v9() -> list[Measurement]:
    model = _llama(6144, 32, 48, 16384, 4096, 256000)
    return [
        Measurement("V9", "15B", "H100", model, 4, 1, gpus // 4, batch, 4, 1, "none", step_s)
        for gpus, batch, step_s in _V9
    ]


def _v10() -> list[Measurement]:
    rows = []
    for name, h, layers, heads, text in _V10:
        model = gpt(h, layers, heads, vocab_size=250880)
        for entry in text.split(";"):
            cut, seconds = entry.split()
            tp, pp, dp, micro, batch = (int(degree) for degree in cut.split("/"))
            rows.append(Measurement("V10", name, "A100", model, tp, pp, dp, batch, micro, 1, "full", float(seconds)))
    return rows


def _v11_to_13() -> list[Measurement]:
    rows = []
    for table, (gpu, entries) in _FOUNDRY.items():
        for name, seq_length, gpus, micro, recompute, batch, tokens_per_s in entries:
            model, step_s = gpt(*_MPT[name], seq_length, 50368), batch * seq_length / gpus / tokens_per_s
            fixed = (table, f"{name} s{seq_length}", gpu, model, 1, 1, gpus, batch, micro, 1, recompute, step_s)
            rows.append(Measurement(*fixed, zero=3, compiles=False))
    return rows


def _v17() -> list[Measurement]:
    rows = []
    for name, model, (tp, pp, chunks, dp, ep, cp), batch, recompute, step_s, layers, memory_gb, once in _V17:
        how = tp, pp, dp, batch, 1, chunks, recompute, step_s, memory_gb
        rows.append(Measurement("V17", name, "H100", model, *how, layers=layers, ep=ep, cp=cp, sends_once=once))
    return rows


def _v18() -> list[Measurement]:
    rows = []
    for tp, pp, chunks, dp, ep, micro, batch, recompute, step_s, layers, once in _V18:
        how = "V18", "Qwen3-235B", "H800", _QWEN_235B, tp, pp, dp, batch, micro, chunks, recompute, step_s
        rows.append(Measurement(*how, layers=layers, ep=ep, sends_once=once))
    return rows


def _v19() -> list[Measurement]:
    rows = []
    for layers, pp, chunks, dp, ep, cp, seq_length, step_s in _V19:
        model = replace(_GROK_1, num_layers=layers, seq_length=seq_length)
        how = "V19", f"Grok-1, {layers} layers", "H100", model, 4, pp, dp, 1024, 1, chunks
        rows.append(Measurement(*how, "none", step_s, ep=ep, etp=4, cp=cp))
    return rows


def _v14_and_15() -> list[Measurement]:
    rows = []
    for table, name, gpu, h, layers, heads, f, gpus, micro, recompute, tokens_per_s, compiles in _TITAN:
        model, step_s = _llama(h, layers, heads, f, 8192, 128256), micro * 8192 / tokens_per_s
        fixed = (table, name, gpu, model, 1, 1, gpus, micro * gpus, micro, 1, recompute, step_s)
        rows.append(Measurement(*fixed, zero=3, compiles=compiles))
    return rows


def _llama(
    hidden_size: int, num_layers: int, num_heads: int, ffn_hidden_size: int, seq_length: int, vocab_size: int
) -> ModelShape:
    return ModelShape(
        family="llama",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=8,
        ffn_hidden_size=ffn_hidden_size,
        seq_length=seq_length,
        vocab_size=vocab_size,
    )
