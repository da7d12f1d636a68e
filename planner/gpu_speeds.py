"""Achieved FLOP/s of GPUs by name, measured by others; used only when job.yaml gives no `compute`.

The values are those of 16-bit training; slower arithmetic must be measured with `python -m holmes_runtime.calibrate`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasuredSpeed:
    """One published run: a GPU whose name holds `gpu` achieved `flops_per_s` on a model of `hidden_size`."""

    gpu: str
    hidden_size: int
    flops_per_s: float


# A100: Megatron-LM README, weak scaling table, April 2021 (mixed precision, sequence 2048).
# H100: Megatron-Core README, weak scaling table, 2024 (BF16, sequence 4096).
MEASURED = (
    MeasuredSpeed("A100", 2304, 137e12),
    MeasuredSpeed("A100", 3072, 138e12),
    MeasuredSpeed("A100", 4096, 142e12),
    MeasuredSpeed("A100", 6144, 135e12),
    MeasuredSpeed("A100", 8192, 138e12),
    MeasuredSpeed("A100", 10240, 140e12),
    MeasuredSpeed("A100", 12288, 148e12),
    MeasuredSpeed("A100", 16384, 155e12),
    MeasuredSpeed("A100", 20480, 163e12),
    MeasuredSpeed("A100", 25600, 163e12),
    MeasuredSpeed("H100", 2048, 408.8e12),
    MeasuredSpeed("H100", 4096, 465.9e12),
    MeasuredSpeed("H100", 6144, 489.1e12),
    MeasuredSpeed("H100", 7168, 459.6e12),
    MeasuredSpeed("H100", 8192, 419.7e12),
    MeasuredSpeed("H100", 10240, 420.5e12),
)


def achieved_flops_per_s(gpu_name: str, hidden_size: int) -> float | None:
    """FLOP/s of the published run on that GPU with the nearest hidden size; None if there is none."""
    rows = [row for row in MEASURED if row.gpu in gpu_name]
    if not rows:
        return None
    return min(rows, key=lambda row: (abs(row.hidden_size - hidden_size), row.hidden_size)).flops_per_s
