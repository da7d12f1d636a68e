"""GPU memory kept free from training: the bytes of CUDA and NCCL, and a share of the bytes that training takes.

The former is counted from known parts, with a measured context. The latter covers holes between torch's segments and
bytes that the memory model does not count.
"""

from __future__ import annotations

from holmes_core.records.job import Job
from planner.cost.engines import engine_of

MIB = 2**20
# The context: 518 MiB on an H200 (driver 580, torch 2.11) for a process that had run no kernel.
CONTEXT_BYTES = 512 * MIB
# A ring keeps buffers for two neighbours on each channel (NVIDIA/nccl #986): 4 MiB for protocol Simple, 4.7 for LL128
# and 0.5 for LL (nccl, src/init.cc), on as many channels as NVLink gets on eight GPUs.
CHANNELS = 16
RING_BYTES = 2 * CHANNELS * (4 * MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16)
# Sends and receives share one buffer (NVIDIA/nccl #1450). Assumption: it has the size of one Simple buffer per channel.
EDGE_BYTES = CHANNELS * 4 * MIB
MAX_EDGES = 4  # in both directions, with the previous and the next stage
# On one H200, six shapes, eager and compiled, took 0.2 to 1.9 % more than counted, and torch's pool up to 1.4 % more
# than that: docs/cost-model.md, "On one GPU". A run measures its own margin (`--calibrate`).
TRAINING_MARGIN = 0.05


def reserve_bytes(job: Job, tp: int, pp: int, dp: int) -> int:
    """Return the bytes that CUDA and NCCL, or another engine, keep on a GPU with these degrees; 0 on CPUs."""
    if job.device == "cpu":
        return 0
    known = engine_of(job).reserve_bytes
    if known is not None:
        return known
    return CONTEXT_BYTES + RING_BYTES * ((tp > 1) + (dp > 1)) + EDGE_BYTES * MAX_EDGES * (pp > 1)


def training_margin(job: Job) -> float:
    """Return the memory kept free as a share of the memory counted for training: as a run measured it, else 5 %."""
    if job.device == "cpu":
        return 0.0
    calibration = job.compute.calibration
    known = calibration.memory_margin if calibration is not None else engine_of(job).memory_margin
    return TRAINING_MARGIN if known is None else known
