"""Values that autograd keeps only as a recipe: cheap operators recompute them from values that are kept.

Unlike a checkpoint of a whole layer this repeats no matrix product, no attention and no collective, and a backward in
two halves makes each value where it needs it.
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
"""`made_again` or `keeping`."""


@dataclass(frozen=True)
class _Recipe:
    """The substitute for a value: the function and inputs that make it, and the shape autograd saved it in."""

    make: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    shape: torch.Size

    def follow(self) -> Tensor:
        with torch.no_grad():
            return self.make(*self.inputs).view(self.shape)


def made_again(value: Tensor, make: Callable[..., Tensor], *inputs: Tensor) -> AbstractContextManager[object]:
    """Make code within keep the inputs of `value`, which is `make(*inputs)`, and recompute it in the backward.

    `value` is contiguous and a storage of its own. Compiled code is left alone, see `kept_selectively`.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return nullcontext()
    address, kept = value.untyped_storage().data_ptr(), tuple(each.detach() for each in inputs)

    def pack(saved: Tensor) -> Tensor | _Recipe:
        is_value = saved.untyped_storage().data_ptr() == address
        return _Recipe(make, kept, saved.shape) if is_value else saved

    def unpack(packed: Tensor | _Recipe) -> Tensor:
        return packed.follow() if isinstance(packed, _Recipe) else packed

    return saved_tensors_hooks(pack, unpack)


def kept_selectively(forward: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    """Return `forward(*inputs)`, to be compiled, so that only results of products and attention are kept.

    `forward` has no collectives inside, as a compiler stops at them.
    """
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    made: Tensor = checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
    return made


def _policy(context: object, operator: Any, *inputs: object, **options: object) -> CheckpointPolicy:
    del context, inputs, options
    return CheckpointPolicy.MUST_SAVE if operator.name() in COSTLY else CheckpointPolicy.PREFER_RECOMPUTE


def keeping(value: Tensor, make: Callable[..., Tensor], *inputs: Tensor) -> AbstractContextManager[object]:
    """Let code within keep `value` as autograd does."""
    del value, make, inputs
    return nullcontext()
