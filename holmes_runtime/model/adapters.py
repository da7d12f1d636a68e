"""Low-rank adapters of frozen matrices, as the peft library has them.

Parameters are `blocks.3.attention.query_lora.a` (rank, inputs) and `.b` (outputs, rank) for one matrix each; a GPT has
one for its `qkv`, whose rows are in the order of that matrix.
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
    """The matrices A (rank, inputs) and B (outputs, rank) of a frozen one.

    Under tensor parallelism the one that meets the split side of the frozen matrix is split with it. The other is
    whole, and each shard has a part of its gradient.
    """

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.a = nn.Parameter(torch.empty(rank, inputs))
        self.b = nn.Parameter(torch.empty(outputs, rank))

    def forward(self, inside: Tensor) -> Tensor:
        """Return the part to add to the frozen product: (.., outputs); inside: the product of A (.., rank)."""
        return functional.linear(inside * self.scale, self.b)


def make_adapter(shape: ModelShape, lora: Lora | None, matrix: Matrix) -> Adapter | None:
    """Return the adapter of `matrix`; None if it has none."""
    return (
        Adapter(*matrix_size(shape, matrix), lora.rank, lora.scale) if lora is not None and lora.has(matrix) else None
    )


def gather_adapted(
    tp: TensorParallel, hidden: Tensor, linears: Sequence[nn.Linear], adapters: Sequence[Adapter | None]
) -> tuple[tuple[Tensor, ...], list[Tensor | None]]:
    """Return the products of `TensorParallel.gather_linear`, and what each of `adapters` of their rows adds."""
    present = [adapter for adapter in adapters if adapter is not None]
    products = tp.gather_linear(hidden, *linears, more=[adapter.a for adapter in present])
    made = zip(present, products[len(linears) :], strict=True)
    added = {adapter: adapter(inside) for adapter, inside in made}
    return products[: len(linears)], [None if adapter is None else added[adapter] for adapter in adapters]


def plus(product: Tensor, added: Tensor | None) -> Tensor:
    """Return the sum of `product` and what an adapter adds to it, if anything."""
    return product if added is None else product + added.view_as(product)


def is_adapter(name: str) -> bool:
    """Return True if parameter `name` is an adapter's."""
    return name.endswith(("_lora.a", "_lora.b"))
