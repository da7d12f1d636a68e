"""Low-rank adapters of frozen matrices, as in the peft library.

The adapter of one matrix has the parameters `blocks.3.attention.query_lora.a` (rank, inputs) and `.b` (outputs, rank).
A GPT has one adapter for its `qkv`, with rows in the order of that matrix.
Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.trainable import Lora, Matrix, matrix_size
from holmes_runtime.model.tensor_parallel import TensorParallel


class Adapter(nn.Module):
    """The matrices A (rank, inputs) and B (outputs, rank) that adapt a frozen matrix.

    Under tensor parallelism B is split with the rows of the frozen matrix, or A with its columns. The other of the two
    is whole, and each shard has a part of its gradient.
    """

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.a = nn.Parameter(torch.empty(rank, inputs))
        self.b = nn.Parameter(torch.empty(outputs, rank))

    def forward(self, inside: Tensor) -> Tensor:
        """Return the values to add to the frozen product: (.., outputs); inside: the product with A (.., rank)."""
        return functional.linear(inside * self.scale, self.b)


def make_adapter(shape: ModelShape, lora: Lora | None, matrix: Matrix) -> Adapter | None:
    """Return the adapter of `matrix`; None if it has none."""
    if lora is None or not lora.has(matrix):
        return None
    return Adapter(*matrix_size(shape, matrix), lora.rank, lora.scale)


def gather_adapted(
    tp: TensorParallel, hidden: Tensor, linears: Sequence[nn.Linear], adapters: Sequence[Adapter | None]
) -> tuple[tuple[Tensor, ...], list[Tensor | None]]:
    """Return the products of `TensorParallel.gather_linear`, and the values that each adapter adds to their rows."""
    present = [adapter for adapter in adapters if adapter is not None]
    products = tp.gather_linear(hidden, *linears, more=[adapter.a for adapter in present])
    made = zip(present, products[len(linears) :], strict=True)
    added = {adapter: adapter(inside) for adapter, inside in made}
    return products[: len(linears)], [None if adapter is None else added[adapter] for adapter in adapters]


def plus(product: Tensor, added: Tensor | None) -> Tensor:
    """Return the sum of `product` and the values of its adapter, if it has one."""
    return product if added is None else product + added.view_as(product)


def is_adapter(name: str) -> bool:
    """Return True if parameter `name` belongs to an adapter."""
    return name.endswith(("_lora.a", "_lora.b"))
