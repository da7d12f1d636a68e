"""Peak FLOP/s of GPUs, against which utilisation is measured."""

from __future__ import annotations

import re
from functools import cache

from holmes_runtime.config.run_settings import Precision


def _peaks(half: float, fp32: float, bf16: bool = True) -> dict[Precision, float]:
    """TFLOP/s as FLOP/s; `half` of fp16, and of bf16 where the GPU has it."""
    peaks: dict[Precision, float] = {"fp16": half * 1e12, "fp32": fp32 * 1e12}
    return {**peaks, "bf16": half * 1e12} if bf16 else peaks


# Dense peak FLOP/s, summed in fp32, of a GPU whose name has the key's words one after the other; of keys that fit the
# longest counts. fp32 on the tensor cores as TF32 would be is not what torch does by default, so it is that of the
# ordinary units. Source: NVIDIA's data sheets of the product, where a figure with sparsity is twice the dense one; of a
# rack or an eight-GPU board the part of one GPU; A10G: NVIDIA and AWS, A10G data sheet, 2022; GeForce: the white papers
# on GA102, Ada and RTX Blackwell, rows "with FP32 accumulate".
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
SLOWER = {"MIG", "Laptop", "Max-Q", "D", "Ti"}
"""Words that mark another product, or a part of a GPU, whose peak is not known here."""


def peak_flops_per_s(gpu_name: str, value_type: Precision) -> float | None:
    """Dense peak of a GPU in this precision; None if it is not in the table.

    `gpu_name` as CUDA has it: `NVIDIA H100 80GB HBM3`, `NVIDIA A100-SXM4-80GB`, `Tesla V100-PCIE-16GB`.
    """
    product = product_of(gpu_name)
    return PEAK_FLOPS_PER_S[product].get(value_type) if product is not None else None


@cache
def product_of(gpu_name: str) -> str | None:
    """Return the key of the table for a GPU's name; None if there is none, or it is a part of a GPU."""
    if SLOWER & set(gpu_name.split()):
        return None
    words = _words(gpu_name)
    fitting = [key for key in PEAK_FLOPS_PER_S if _has_in_order(words, _words(key))]
    return max(fitting, key=len) if fitting else None


def _words(name: str) -> list[str]:
    return re.split(r"[\s-]+", name)


def _has_in_order(words: list[str], wanted: list[str]) -> bool:
    """Return True if `words` has `wanted` in this order; others may stand between, as memory sizes do."""
    rest = iter(words)
    return all(word in rest for word in wanted)
