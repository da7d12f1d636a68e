"""What GPUs can do at most, which utilisation is measured against."""

from __future__ import annotations

from holmes_runtime.config.run_settings import Precision

# Dense peak FLOP/s of a GPU whose name holds the key, by precision; fp32 on the tensor cores as TF32 would be is not
# what torch does by default, so it is that of the ordinary units. Source: NVIDIA's data sheets. Longer names first.
PEAK_FLOPS_PER_S: dict[str, dict[Precision, float]] = {
    "H100 PCIe": {"bf16": 756e12, "fp16": 756e12, "fp32": 51e12},
    "H100": {"bf16": 989e12, "fp16": 989e12, "fp32": 67e12},
    "H200": {"bf16": 989e12, "fp16": 989e12, "fp32": 67e12},
    "H800": {"bf16": 989e12, "fp16": 989e12, "fp32": 67e12},
    "H20": {"bf16": 148e12, "fp16": 148e12, "fp32": 44e12},
    "GB200": {"bf16": 2500e12, "fp16": 2500e12, "fp32": 80e12},
    "B200": {"bf16": 2250e12, "fp16": 2250e12, "fp32": 75e12},
    "A100": {"bf16": 312e12, "fp16": 312e12, "fp32": 19.5e12},
    "A800": {"bf16": 312e12, "fp16": 312e12, "fp32": 19.5e12},
    "L40S": {"bf16": 362e12, "fp16": 362e12, "fp32": 91.6e12},
    "A10": {"bf16": 125e12, "fp16": 125e12, "fp32": 31.2e12},
    "V100": {"fp16": 125e12, "fp32": 15.7e12},
}


def peak_flops_per_s(gpu_name: str, value_type: Precision) -> float | None:
    """Dense peak of a GPU in this precision; None if it is not in the table."""
    for name, peaks in PEAK_FLOPS_PER_S.items():
        if name in gpu_name:
            return peaks.get(value_type)
    return None
