"""Dense peak FLOP/s of GPUs, the reference for utilisation."""

from __future__ import annotations

import re
from functools import cache

from holmes_runtime.config.run_settings import Precision


def _peaks(half: float, fp32: float, bf16: bool = True) -> dict[Precision, float]:
    """Return peaks in FLOP/s from TFLOP/s. `half` is the peak of fp16, and of bf16 if the GPU has it."""
    peaks: dict[Precision, float] = {"fp16": half * 1e12, "fp32": fp32 * 1e12}
    return {**peaks, "bf16": half * 1e12} if bf16 else peaks


# Dense peak FLOP/s with sums in fp32. A key fits a GPU whose name contains the key's words in the same order; the
# longest key that fits counts. fp32 is the peak of the ordinary units, as torch by default does not use TF32 on tensor
# cores. Source: NVIDIA's data sheets. Figures with sparsity are halved. Figures for a rack or an eight-GPU board are
# divided by the number of GPUs. A10G: NVIDIA and AWS, A10G data sheet, 2022. GeForce: the white papers on GA102, Ada
# and RTX Blackwell, rows "with FP32 accumulate".
PEAK_FLOPS_PER_S: dict[str, dict[Precision, float]] = {
    "GB300": _peaks(2500, 80),
    "B300": _peaks(2250, 75),
    "GB200": _peaks(2500, 80),
    "B200": _peaks(2250, 75),
    "GH200": _peaks(989, 67),
    "H200 NVL": _peaks(835, 60),
    "H200": _peaks(989, 67),
    "H100 NVL": _peaks(835, 60),
    "H100 PCIe": _peaks(756, 51),
    "H100 HBM2e": _peaks(989, 67),  # peak of the same chip; its own, at 500 W, is lower and unpublished
    "H100": _peaks(989, 67),
    "H800 PCIe": _peaks(756, 51),
    "H800": _peaks(989, 67),
    "H20": _peaks(148, 44),
    "A100 40GB": _peaks(312, 19.5),
    "A100": _peaks(312, 19.5),
    "A800": _peaks(312, 19.5),
    "A40": _peaks(149.7, 37.4),
    "A30": _peaks(165, 10.3),
    "A10G": _peaks(70, 35),
    "A10": _peaks(125, 31.2),
    "L40S": _peaks(362, 91.6),
    "L40": _peaks(181, 90.5),
    "L4": _peaks(121, 30.3),
    "RTX A6000": _peaks(154.8, 38.7),
    "RTX 6000 Ada": _peaks(364.2, 91.1),
    "RTX 5090": _peaks(209.5, 104.8),
    "RTX 4090": _peaks(165.2, 82.6),
    "RTX 3090": _peaks(71, 35.6),
    "V100 PCIE": _peaks(112, 14, bf16=False),
    "V100": _peaks(125, 15.7, bf16=False),
    "T4": _peaks(65, 8.1, bf16=False),
}
WITHOUT_FP8 = {
    *("A100 40GB", "A100", "A800", "A40", "A30", "A10G", "A10", "RTX A6000", "RTX 3090", "V100 PCIE", "V100", "T4"),
}
"""Products with a compute capability below 8.9, the first with FP8. Source: NVIDIA, CUDA GPU Compute Capability."""
SLOWER = {"MIG", "Laptop", "Max-Q", "D", "Ti"}
"""Words in the name of another product, or of a part of a GPU, whose peak is not in the table."""


def peak_flops_per_s(gpu_name: str, value_type: Precision) -> float | None:
    """Return the dense peak of a GPU in this precision, in FLOP/s; None if it is not in the table.

    `gpu_name` is the name CUDA gives: `NVIDIA H100 80GB HBM3`, `NVIDIA A100-SXM4-80GB`, `Tesla V100-PCIE-16GB`.
    """
    product = product_of(gpu_name)
    return PEAK_FLOPS_PER_S[product].get(value_type) if product is not None else None


def lacks_fp8(gpu_name: str) -> bool:
    """Return True if a GPU with that name is known not to multiply in FP8."""
    return product_of(gpu_name) in WITHOUT_FP8


@cache
def product_of(gpu_name: str) -> str | None:
    """Return the table's key for a GPU's name. Return None if no key fits, or if the name has a word of `SLOWER`."""
    if SLOWER & set(gpu_name.split()):
        return None
    words = _words(gpu_name)
    fitting = [key for key in PEAK_FLOPS_PER_S if _has_in_order(words, _words(key))]
    return max(fitting, key=len) if fitting else None


def _words(name: str) -> list[str]:
    return re.split(r"[\s-]+", name)


def _has_in_order(words: list[str], wanted: list[str]) -> bool:
    """Return True if `words` has all of `wanted` in the same order, with others such as memory sizes in between."""
    rest = iter(words)
    return all(word in rest for word in wanted)
