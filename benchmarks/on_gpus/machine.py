"""The GPUs, driver, CUDA and compiler of this machine, as torch and nvidia-smi report them."""

from __future__ import annotations

import multiprocessing
import os
import platform
import subprocess
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Literal

import torch

from benchmarks.on_gpus.packages import installed_version
from holmes_runtime.node.compiler import missing_for_compile
from launcher.nodes.node_checks import MIN_DRIVER

Device = Literal["cuda", "cpu"]
DEFAULT_MODE = "Default"  # of compute: the only one in which two processes may use a GPU
OLDER_BUILD = "torch for CUDA 12.6 runs on it: pip install torch --index-url https://download.pytorch.org/whl/cu126"


@dataclass(frozen=True)
class Machine:
    """Versions as text, None where there is none; `gpus` are names in the order of CUDA.

    `driver` and `compute_mode` are nvidia-smi's. `not_compiled`: the thing that compiled layers lack here.
    """

    torch: str
    cuda: str | None
    nccl: str | None
    driver: str | None
    gpus: tuple[str, ...]
    python: str = platform.python_version()
    triton: str | None = None
    compute_mode: str | None = None
    free_memory_bytes: tuple[int, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    not_compiled: str | None = None

    @property
    def fault(self) -> str | None:
        """The reason why nothing can be run on GPUs here; None if it can."""
        if self.cuda is None:
            return f"torch {self.torch} is built without CUDA"
        least = MIN_DRIVER.get(int(self.cuda.split(".")[0]))
        if least is not None and self.driver is not None and int(self.driver.split(".")[0]) < least:
            hint = f"; {OLDER_BUILD}" if least > MIN_DRIVER[12] else ""
            return f"driver {self.driver} is older than {least}, which CUDA {self.cuda} needs{hint}"
        if not self.gpus:
            return f"no GPU is there: torch {self.torch} sees none, nvidia-smi says driver {self.driver}"
        return None

    @property
    def is_shared(self) -> bool:
        """True if two processes may use one GPU, as far as is known."""
        return self.compute_mode in (None, DEFAULT_MODE)


def read_machine() -> Machine:
    """Return the description of this machine, read in a process of its own: one that asks CUDA stays on the GPU."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as reader:
        return reader.submit(_read_here).result()


def _read_here() -> Machine:
    count = torch.cuda.device_count()
    memory = [torch.cuda.mem_get_info(index) for index in range(count)]
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None  # type: ignore[no-untyped-call]
    return Machine(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        nccl=nccl,
        driver=_nvidia_smi("driver_version"),
        gpus=tuple(torch.cuda.get_device_name(index) for index in range(count)),
        triton=installed_version("triton"),
        compute_mode=_nvidia_smi("compute_mode"),
        free_memory_bytes=tuple(free for free, _ in memory),
        memory_bytes=tuple(total for _, total in memory),
        not_compiled=missing_for_compile(count > 0, os.environ),
    )


def _nvidia_smi(field: str) -> str | None:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split("\n")[0].strip() or None
