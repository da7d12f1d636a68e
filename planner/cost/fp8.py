"""Layers whose matrices are multiplied in FP8: the jobs and GPUs that allow it."""

from __future__ import annotations

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Host
from holmes_core.records.job import Job
from holmes_runtime.config.gpu_peaks import lacks_fp8
from holmes_runtime.config.run_settings import fp8_obstacle


def check_fp8(job: Job) -> None:
    """Raise HolmesError (wrong usage) if the bundled runtime cannot train the job in FP8."""
    if not job.fp8:
        return
    fixed = job.parallel
    obstacle = fp8_obstacle(
        job.model, job.value_type, fixed.schedule, fixed.tp or 1, job.cp, trains_all=job.trainable is None
    )
    obstacle = obstacle if job.is_bundled else f"trainer.engine {job.engine}"
    if obstacle is not None:
        raise HolmesError(
            f"job: fp8 is true with {obstacle}: the bundled runtime uses FP8 only for the matrices of its own dense "
            "layers, trained in bf16 and whole on a rank",
            "leave fp8 out, or change that setting",
        )


def check_fp8_gpus(host: Host, job: Job) -> None:
    """Raise HolmesError if the host has a GPU that is known to lack FP8 products."""
    gpu = next((gpu for gpu in host.gpus if gpu.name is not None and lacks_fp8(gpu.name)), None)
    if job.fp8 and job.device == "cuda" and gpu is not None:
        raise HolmesError(
            f"host {host.name}: GPU {gpu.index} ({gpu.name}) has no FP8 products, and fp8 is true in job.yaml",
            "leave fp8 out of job.yaml, or plan without the host",
        )
