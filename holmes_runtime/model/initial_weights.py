"""The initial values of parameters. Each rank draws its own part, block by block, on all of its cores.

Every block has its own generator. So values depend on the seed and the name alone, not on how layers are cut or split,
nor on the number of threads that draw.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from holmes_runtime.model.adapters import is_adapter
from holmes_runtime.model.tensor_part import TensorPart, split_dim

INIT_STD = 0.02  # GPT-2
BLOCK = 128  # rows that one generator draws, or columns of a matrix that is split by columns


def initial_value(
    name: str, shape: tuple[int, ...], seed: int, num_layers: int, part: TensorPart | None = None
) -> Tensor:
    """Return the initial value of parameter `name` of `shape`, or of a `part` of it, fp32 on the CPU.

    Biases are 0, norms 1. Weights are normal with standard deviation 0.02, divided by sqrt(2 * num_layers) for the
    matrices that write to the residual stream (GPT-2). An adapter's B is 0 and its A uniform within 1 / sqrt(columns),
    as in the peft library.
    """
    part = part or TensorPart(shape, (0,) * len(shape), shape)
    owner, _, kind = name.rpartition(".")
    if kind == "bias":
        return torch.zeros(part.shape)
    if owner.endswith("norm"):
        return torch.ones(part.shape)
    if is_adapter(name):
        if kind == "b":
            return torch.zeros(part.shape)
        bound = 1 / math.sqrt(shape[1])
        return _draw(name, part, lambda values, generator: values.uniform_(-bound, bound, generator=generator), seed)
    writes_residual = owner.endswith(("attention.projection", "mlp.down", "experts.down"))
    std = INIT_STD / math.sqrt(2 * num_layers) if writes_residual else INIT_STD
    return _draw(name, part, lambda values, generator: values.normal_(0.0, std, generator=generator), seed)


def _draw(name: str, part: TensorPart, draw: Callable[[Tensor, torch.Generator], Tensor], seed: int) -> Tensor:
    """Return `part` of the numbers that `draw` makes, block by block.

    A block that is wholly inside `part` is drawn in place, because a copy takes half as long again.
    """
    dim = split_dim(name) or 0
    drawn, length = torch.empty(part.shape), part.global_shape[dim]
    own = range(part.offset[dim], part.offset[dim] + part.shape[dim])

    def fill(block: int) -> None:
        first, stop = block * BLOCK, min((block + 1) * BLOCK, length)
        low, high = max(first, own.start), min(stop, own.stop)
        place, generator = drawn.narrow(dim, low - own.start, high - low), _generator(seed, name, block)
        shape = (*part.global_shape[:dim], stop - first, *part.global_shape[dim + 1 :])
        if place.shape == shape and place.is_contiguous():  # else torch would draw other numbers, or one by one
            draw(place, generator)
            return
        values = draw(torch.empty(shape), generator).narrow(dim, low - first, high - low)
        if dim > 0:  # keep only this rank's experts
            values = values.narrow(0, part.offset[0], part.shape[0])
        place.copy_(values)

    blocks = range(own.start // BLOCK, -(-own.stop // BLOCK))
    if len(blocks) == 1:
        fill(blocks[0])
    else:
        with ThreadPoolExecutor(_own_cores()) as pool:
            list(pool.map(fill, blocks))
    return drawn


def _own_cores() -> int:
    """Return this rank's share of the available cores."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _generator(seed: int, name: str, block: int) -> torch.Generator:
    """Return a CPU generator that depends only on the run's seed, the parameter's global name and the block."""
    digest = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
