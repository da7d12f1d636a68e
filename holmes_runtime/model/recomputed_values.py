"""Values that autograd does not keep but recomputes, by cheap operators from values that it keeps.

Unlike a checkpoint of a whole layer, this repeats no matrix product, no attention and no collective. Each half of a
split backward recomputes only the values that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

COSTLY = {
    "aten::mm",
    "aten::addmm",
    "aten::_scaled_mm",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "torch_attn::_varlen_attn",
}

Keep = Callable[..., AbstractContextManager[object]]
"""`recomputing` or `keeping`."""


@dataclass(frozen=True)
class _Recipe:
    """A substitute for a value: the function and inputs that compute it, and the shape in which autograd saved it."""

    make: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    shape: torch.Size

    def compute(self) -> Tensor:
        with torch.no_grad():
            return self.make(*self.inputs).view(self.shape)


def recomputing(value: Tensor, make: Callable[..., Tensor], *inputs: Tensor) -> AbstractContextManager[object]:
    """Make operators inside keep the `inputs` of `value`, which is `make(*inputs)`, and recompute it in the backward.

    `value` is contiguous and has its own storage. Compiled code uses `checkpoint_selectively` instead.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return nullcontext()
    address, kept = value.untyped_storage().data_ptr(), tuple(each.detach() for each in inputs)

    def pack(saved: Tensor) -> Tensor | _Recipe:
        is_value = saved.untyped_storage().data_ptr() == address
        return _Recipe(make, kept, saved.shape) if is_value else saved

    def unpack(packed: Tensor | _Recipe) -> Tensor:
        return packed.compute() if isinstance(packed, _Recipe) else packed

    return saved_tensors_hooks(pack, unpack)


def checkpoint_selectively(forward: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    """Return `forward(*inputs)`, to be compiled, which keeps only results of products and attention.

    `forward` has no collectives, because a compiler stops at them.
    """
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    made: Tensor = checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
    return made


def _policy(context: object, operator: Any, *inputs: object, **options: object) -> CheckpointPolicy:
    del context, inputs, options
    return CheckpointPolicy.MUST_SAVE if operator.name() in COSTLY else CheckpointPolicy.PREFER_RECOMPUTE


def keeping(value: Tensor, make: Callable[..., Tensor], *inputs: Tensor) -> AbstractContextManager[object]:
    """Let operators inside keep `value`, as autograd does by default."""
    del value, make, inputs
    return nullcontext()
