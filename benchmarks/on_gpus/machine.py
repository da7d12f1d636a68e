"""What this machine has to train on, as torch and nvidia-smi say."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Literal

import torch

from launcher.nodes.node_checks import MIN_DRIVER

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class Machine:
    """Versions as text, None where there is none; `gpus` are names in the order of CUDA, `driver` nvidia-smi's."""

    torch: str
    cuda: str | None
    nccl: str | None
    driver: str | None
    gpus: tuple[str, ...]

    @property
    def fault(self) -> str | None:
        """Why nothing can be run on GPUs here; None if it can."""
        if self.cuda is None:
            return f"torch {self.torch} is built without CUDA"
        if not self.gpus:
            return f"no GPU is there: torch {self.torch} sees none, nvidia-smi says driver {self.driver}"
        least = MIN_DRIVER.get(int(self.cuda.split(".")[0]))
        if least is not None and self.driver is not None and int(self.driver.split(".")[0]) < least:
            return f"driver {self.driver} is older than {least}, which CUDA {self.cuda} needs"
        return None


def read_machine() -> Machine:
    """This one."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None  # type: ignore[no-untyped-call]
    return Machine(torch.__version__, torch.version.cuda, nccl, _driver(), tuple(gpus))


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split("\n")[0].strip() or None
