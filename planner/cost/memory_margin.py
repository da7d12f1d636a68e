"""GPU memory kept from training: the bytes that CUDA and NCCL take, and a share of the bytes that training takes.

The first is counted from known parts; its context was measured. The second stands for holes between torch's segments,
and for bytes that the model of memory does not count.
"""

from __future__ import annotations

from holmes_core.records.job import Job
from planner.cost.engines import engine_of

MIB = 2**20
# The context: 518 MiB on an H200, driver 580, torch 2.11, of a process that had run no kernel.
CONTEXT_BYTES = 512 * MIB
# A ring keeps buffers for two neighbours on each channel (NVIDIA/nccl #986): of the protocols Simple 4 MiB, LL128 4.7
# and LL 0.5 (nccl, src/init.cc), on as many channels as NVLink gets on eight GPUs.
CHANNELS = 16
RING_BYTES = 2 * CHANNELS * (4 * MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16)
# Sends and receives share one buffer (NVIDIA/nccl #1450); assumption: the size of one Simple buffer a channel.
EDGE_BYTES = CHANNELS * 4 * MIB
MAX_EDGES = 4  # there and back, with the stage before and the one after
# On one H200 six shapes, eager and compiled, took 0.2 to 1.9 % more than was counted, and torch's pool up to 1.4 % more
# than they took: docs/cost-model.md, "On one GPU". A run measures its own (`--calibrate`).
TRAINING_MARGIN = 0.05


def reserve_bytes(job: Job, tp: int, pp: int, dp: int) -> int:
    """Return the bytes that CUDA and NCCL keep of a GPU with these degrees, or another engine; 0 on CPUs."""
    if job.device == "cpu":
        return 0
    known = engine_of(job).reserve_bytes
    if known is not None:
        return known
    return CONTEXT_BYTES + RING_BYTES * ((tp > 1) + (dp > 1)) + EDGE_BYTES * MAX_EDGES * (pp > 1)


def training_margin(job: Job) -> float:
    """Return the memory kept free, as a share of the memory counted for training: as a run measured it, else 5 %."""
    if job.device == "cpu":
        return 0.0
    calibration = job.compute.calibration
    known = calibration.memory_margin if calibration is not None else engine_of(job).memory_margin
    return TRAINING_MARGIN if known is None else known
