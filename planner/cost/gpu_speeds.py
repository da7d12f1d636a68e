"""Speeds of GPUs by product and engine: fitted to published runs or taken from data sheets, each with its source.

`python -m benchmarks.published_steps.fit A100` fits them again; docs/cost-model.md has their errors.
Any other GPU must be measured: by `holmes calibrate`, or by a run (`--calibrate`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holmes_core.records.job import EngineName
from holmes_runtime.config.gpu_peaks import peak_flops_per_s, product_of
from holmes_runtime.config.run_settings import VALUE_BYTES, Precision


@dataclass(frozen=True)
class Speed:
    """The speed of one slot, in terms that depend on the shape of the work.

    matrix_flops_per_s: of large matrix products. half_size: tokens x hidden size / tp at which they reach half of it.
    attention_flops_per_s: of the attention core; None: as matrices. memory_bytes_per_s: of the GPU's memory, for all
    other work; None: that takes no time. launch_s: the least seconds of a layer's forward, spent on launching its
    kernels. update_bytes_per_s: of memory in the optimizer if memory_bytes_per_s is None. layer_speed_up: of the
    products in layers, but not in the head, over matrix_flops_per_s.
    """

    matrix_flops_per_s: float
    half_size: float = 0.0
    attention_flops_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    launch_s: float = 0.0
    update_bytes_per_s: float | None = None
    layer_speed_up: float = 1.0

    def slowed(self, factor: float) -> Speed:
        """Return the speed at which everything takes `factor` times as long."""
        return Speed(
            self.matrix_flops_per_s / factor,
            self.half_size,
            self.attention_flops_per_s / factor if self.attention_flops_per_s else None,
            self.memory_bytes_per_s / factor if self.memory_bytes_per_s else None,
            self.launch_s * factor,
            self.update_bytes_per_s / factor if self.update_bytes_per_s else None,
            self.layer_speed_up,
        )


# Memory rates: A100's is fitted, against 2.04 TB/s on the data sheet; all others are the same part of theirs.
# Fitted to every second row of tables V11 to V15 of docs/cost-model.md (A100, H100), together with the part of
# ZeRO-3's traffic that compute does not hide (sharded_weights.py), V5 and V16 (GH200).
MEMORY_PART = 0.81
A100 = Speed(250e12, half_size=4.6e5, attention_flops_per_s=165e12, memory_bytes_per_s=1.66e12, launch_s=5e-4)
H100 = Speed(662e12, half_size=3e5, attention_flops_per_s=328e12, memory_bytes_per_s=2.7e12, launch_s=4e-4)
# The geometric mean of both rows of V14, at 500 W.
H100_HBM2E = replace(H100.slowed(1.27), memory_bytes_per_s=MEMORY_PART * 2.4e12)
# Fitted to every second of twelve bundled-trainer steps on one H200, torch 2.11: docs/cost-model.md, "On one GPU".
H200 = Speed(687e12, half_size=5.3e5, attention_flops_per_s=963e12, memory_bytes_per_s=2.63e12, launch_s=5e-4)
# Likewise on one H100, which has the same chip: only memory and launch are fitted.
H100_BUNDLED = replace(H200, memory_bytes_per_s=2.35e12, launch_s=5.8e-4)
# FP8 products over bf16 products, scaling of the matrices included: the geometric mean of two shapes on one H200,
# 1.25 (hidden size 2,048) and 1.6 (4,096).
FP8_PRODUCTS_SPEED_UP = 1.4
# Sailor's fp32, in TF32: just below the data sheet's 494e12.
GH200_TF32 = Speed(480e12, half_size=3e5, memory_bytes_per_s=3.25e12, launch_s=6e-4)

# Megatron-LM of 2021: attention without a fused kernel. Fitted to every second row of V1 to V4.
A100_2021 = Speed(272e12, half_size=4.6e5, attention_flops_per_s=79.5e12, memory_bytes_per_s=1.66e12, launch_s=2.0e-3)
# BigScience's compute takes 1.17 times as long, fitted to every second row of V10; vTrain's (V4) does not.
DEEPSPEED_FACTOR = 1.17
# Megatron-Core as its README ran it (V6; attention at FlashAttention's rate, not fitted). NeMo's compute takes 0.81 of
# that: midway between V8, which is then 5 % too slow, and V9, 3 % too fast.
H100_MEGATRON = Speed(559e12, half_size=3e5, attention_flops_per_s=400e12, memory_bytes_per_s=2.7e12, launch_s=4e-4)
H100_NEMO = H100_MEGATRON.slowed(0.81)
# Versions of 2026, with the attention rate of torch 2.11 on the same chip (H200 above): cuDNN and FlashAttention-3
# reach it; FlashAttention-2 reaches a third (Shah et al., FlashAttention-3, 2024, figure 5).
H100_MEGATRON_2026 = replace(H100_NEMO, attention_flops_per_s=H200.attention_flops_per_s)
H100_TITAN = replace(H100, attention_flops_per_s=H200.attention_flops_per_s)

# By product as in gpu_peaks.py, and bytes of a value. For engines with fused attention that have no entry in `LEVELS`.
# GH200 has H100's chip with other memory.
PUBLISHED: dict[tuple[str, int], Speed] = {
    ("A100", 2): A100,
    ("A100 40GB", 2): replace(A100, memory_bytes_per_s=MEMORY_PART * 1.555e12),
    ("A800", 2): A100,
    ("H100", 2): H100,
    ("H100 HBM2e", 2): H100_HBM2E,
    ("H800", 2): H100,
    ("H200", 2): H200,
    ("GH200", 2): replace(H100, memory_bytes_per_s=MEMORY_PART * 4.0e12),
}

_OF_2021 = {("A100", 2): A100_2021, ("A100 40GB", 2): replace(A100_2021, memory_bytes_per_s=MEMORY_PART * 1.555e12)}
_OF_DEEPSPEED = {key: speed.slowed(DEEPSPEED_FACTOR) for key, speed in _OF_2021.items()}
_OF_2024 = {("H100", 2): H100_NEMO, ("H800", 2): H100_NEMO}
LEVELS: dict[EngineName, dict[tuple[str, int], Speed]] = {
    "holmes": {("H100", 2): H100_BUNDLED, ("H800", 2): H100_BUNDLED},
    "megatron": {("H100", 2): H100_MEGATRON_2026, ("H800", 2): H100_MEGATRON_2026},
    "torchtitan": {("H100", 2): H100_TITAN, ("H800", 2): H100_TITAN},
    "deepspeed": _OF_DEEPSPEED,
    "megatron-2020": _OF_2021,
    "megatron-2021": _OF_2021,
    "megatron-deepspeed": _OF_DEEPSPEED,
    "megatron-2024": _OF_2024,
    "sailor": {("GH200", 4): GH200_TF32},
}

# For all other products: the geometric mean of the shares of their data sheets that A100 and H100 reach. They reach
# 0.80 and 0.67 of the peak in large products, and 0.53 and 0.33 of it in attention.
MATRIX_PART, ATTENTION_PART, HALF_SIZE, LAUNCH_S = 0.73, 0.42, 3.7e5, 4.5e-4
SPREAD = 0.35  # relative error of compute seconds, to either side: see docs/cost-model.md
PUBLISHED_SPREAD = 0.11  # likewise for speeds from published runs: the largest error of the 32 steps under FSDP

# TB/s of a GPU's memory, by product. Source: NVIDIA's data sheets (for racks and eight-GPU boards, one GPU's part); for
# GeForce, NVIDIA's product specifications.
MEMORY_TB_PER_S = {
    **{"GB300": 8.0, "B300": 8.0, "GB200": 8.0, "B200": 8.0, "H200 NVL": 4.8, "H20": 4.0},
    **{"H100 NVL": 3.9, "H100 PCIe": 2.0, "H800 PCIe": 2.0, "H100": 3.35, "H800": 3.35, "H200": 4.8, "GH200": 4.0},
    **{"H100 HBM2e": 2.4},  # torchtitan, benchmarks/llama3_h100_202412_torchtitan.md
    **{"A100": 2.04, "A100 40GB": 1.555, "A800": 2.04, "A40": 0.696, "A30": 0.933, "A10G": 0.6, "A10": 0.6},
    **{"L40S": 0.864, "L40": 0.864, "L4": 0.3, "RTX A6000": 0.768, "RTX 6000 Ada": 0.96},
    **{"RTX 5090": 1.792, "RTX 4090": 1.008, "RTX 3090": 0.936, "V100 PCIE": 0.9, "V100": 0.9, "T4": 0.32},
}

# MiB of GPU memory that nvidia-smi shows, by product, for GPUs that were not probed. Source: public logs; whole GiB if
# none was at hand. Data sheets list up to 7 % more: with ECC on, GDDR6 loses a sixteenth.
MEMORY_MIB = {
    **{"GB300": 277 * 1024, "B300": 268 * 1024, "GB200": 189471, "B200": 183359, "GH200": 96 * 1024},
    **{"H200 NVL": 140 * 1024, "H200": 140 * 1024, "H20": 96 * 1024, "H100 NVL": 93 * 1024, "H100 PCIe": 81559},
    **{"H100 HBM2e": 96 * 1024, "H100": 81559, "H800 PCIe": 81559, "H800": 81559, "A800": 81920, "A100 40GB": 40960},
    **{"A100": 81920, "A40": 46068, "A30": 24 * 1024, "A10G": 23028, "A10": 23028, "L40S": 46068, "L40": 46068},
    **{"L4": 22 * 1024, "RTX A6000": 48 * 1024, "RTX 6000 Ada": 48 * 1024, "RTX 5090": 32 * 1024},
    **{"RTX 4090": 24 * 1024, "RTX 3090": 24 * 1024, "V100 PCIE": 16 * 1024, "V100": 32510, "T4": 15 * 1024},
}


def constant_speed(flops_per_s: float, update_bytes_per_s: float | None = None) -> Speed:
    """Return the speed of a slot for which only the achieved FLOP/s is known, measured on the job's own layer."""
    return Speed(flops_per_s, update_bytes_per_s=update_bytes_per_s)


def gpu_speed(gpu_name: str, value_type: Precision, engine: EngineName = "holmes") -> Speed | None:
    """Return the speed of a GPU by name under an engine: fitted to published runs, else from its data sheet.

    None if neither has it, or if the GPU lacks values of that type.
    """
    product, peak = product_of(gpu_name), peak_flops_per_s(gpu_name, value_type)
    if product is None or peak is None:
        return None
    return _published(product, value_type, engine) or Speed(
        MATRIX_PART * peak,
        half_size=HALF_SIZE,
        attention_flops_per_s=ATTENTION_PART * peak,
        memory_bytes_per_s=MEMORY_PART * MEMORY_TB_PER_S[product] * 1e12,
        launch_s=LAUNCH_S,
    )


def is_published(gpu_name: str, value_type: Precision, engine: EngineName = "holmes") -> bool:
    """Return True if published runs give the GPU's speed under an engine, rather than only its data sheet."""
    product = product_of(gpu_name)
    return product is not None and _published(product, value_type, engine) is not None


def _published(product: str, value_type: Precision, engine: EngineName) -> Speed | None:
    key = product, VALUE_BYTES[value_type]
    return LEVELS.get(engine, {}).get(key) or PUBLISHED.get(key)
