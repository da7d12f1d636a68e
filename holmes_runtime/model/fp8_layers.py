"""Matrix products of layers in FP8, by torchao, which a host may lack."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from holmes_runtime.node.compiler import missing_for_fp8

FP8_CAPABILITY = (8, 9)  # the lowest with FP8 products. Source: torch/nn/functional.py, scaled_mm


def multiply_in_fp8(blocks: nn.Module, host: str, device: torch.device) -> None:
    """Replace the linear modules of `blocks` by torchao's, which multiply in FP8 forward and backward.

    Parameters, their names and the values kept for the backward do not change. Each product scales each of its two
    matrices by its current largest value. CPUs multiply the rounded values in fp32.

    Raises:
        RuntimeError: The host lacks torchao, its torchao does not fit its torch, or its GPU lacks FP8 products.
    """
    float8: Any = None
    lacking = missing_for_fp8()
    if lacking is None:
        try:
            float8 = importlib.import_module("torchao.float8")
        except ImportError as error:
            lacking = f"a torchao that works with torch {torch.__version__}: {error}"
    if lacking is None and device.type == "cuda" and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        name, wanted = torch.cuda.get_device_name(device), ".".join(map(str, FP8_CAPABILITY))
        lacking = f"a GPU of compute capability {wanted} or later, which {name} is not"
    if lacking is not None:
        raise RuntimeError(f"host {host}: fp8 needs {lacking}; provide it, or leave `fp8` out of job.yaml")
    float8.convert_to_float8_training(blocks, config=float8.Float8LinearConfig(emulate=device.type == "cpu"))
