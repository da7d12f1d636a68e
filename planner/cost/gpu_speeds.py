"""How fast GPUs compute: constants by machine type, fitted to published runs; the source is beside each.

`python -m benchmarks.published_steps.fit A100` fits them again; docs/cost-model.md says how well they predict.
A GPU without published runs must be measured: by `python -m holmes_runtime.calibrate`, or by a run (`--calibrate`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Speed:
    """What one slot computes, in terms that follow the shape of the work.

    matrix_flops_per_s: of large matrix products. half_size: tokens x hidden size / tp at which they reach half of it.
    attention_flops_per_s: of the attention core; None: as matrices. memory_bytes_per_s: of the GPU's memory, for all
    that is no matrix product; None: those take no time of their own. launch_s: least seconds of a layer's forward,
    which launching its kernels takes. update_bytes_per_s: of memory under the optimizer, without memory_bytes_per_s.
    """

    matrix_flops_per_s: float
    half_size: float = 0.0
    attention_flops_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    launch_s: float = 0.0
    update_bytes_per_s: float | None = None

    def slowed(self, factor: float) -> Speed:
        """The speed at which everything takes `factor` times as long."""
        return Speed(
            self.matrix_flops_per_s / factor,
            self.half_size,
            self.attention_flops_per_s / factor if self.attention_flops_per_s else None,
            self.memory_bytes_per_s / factor if self.memory_bytes_per_s else None,
            self.launch_s * factor,
            self.update_bytes_per_s / factor if self.update_bytes_per_s else None,
        )


@dataclass(frozen=True)
class MachineType:
    """GPUs whose name holds one of `names`, with values of `value_bytes`."""

    names: tuple[str, ...]
    value_bytes: int
    speed: Speed


# Memory rates: A100 fitted, of the data sheet's 2.04 TB/s; the others the same part, 0.81, of 3.35 and 4.0 TB/s.
# Fitted to every second row of: tables V1 to V4 of docs/cost-model.md (A100), V6 (H100; its attention rate is
# FlashAttention's, not fitted), V5 (GH200 in fp32).
A100 = Speed(272e12, half_size=4.6e5, attention_flops_per_s=79.5e12, memory_bytes_per_s=1.66e12, launch_s=2.0e-3)
H100 = Speed(559e12, half_size=3e5, attention_flops_per_s=400e12, memory_bytes_per_s=2.7e12, launch_s=4e-4)
GH200_FP32 = Speed(125e12, half_size=2.37e6, memory_bytes_per_s=3.25e12, launch_s=6e-4)

MACHINE_TYPES = (
    MachineType(("A100", "A800"), 2, A100),
    MachineType(("H100", "H800", "H200", "GH200"), 2, H100),
    MachineType(("GH200",), 4, GH200_FP32),
)


def constant_speed(flops_per_s: float, update_bytes_per_s: float | None = None) -> Speed:
    """The speed of a slot of which only the achieved FLOP/s is known, measured on the job's own layer."""
    return Speed(flops_per_s, update_bytes_per_s=update_bytes_per_s)


def gpu_speed(gpu_name: str, value_bytes: int) -> Speed | None:
    """The speed of a GPU of that name with values of 2 or 4 bytes; None if no published run tells."""
    for machine in MACHINE_TYPES:
        if machine.value_bytes == value_bytes and any(name in gpu_name for name in machine.names):
            return machine.speed
    return None
