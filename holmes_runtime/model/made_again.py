"""Values that autograd keeps no more than a recipe of: cheap operators make them again from what is kept.

Unlike a checkpoint of a whole layer this repeats no matrix product, no attention and no collective, and a backward in
two halves makes each value where it needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

ATEN = torch.ops.aten
COSTLY = [
    ATEN.mm.default,
    ATEN.addmm.default,
    ATEN._scaled_dot_product_flash_attention.default,
    ATEN._scaled_dot_product_efficient_attention.default,
    ATEN._scaled_dot_product_cudnn_attention.default,
    ATEN._scaled_dot_product_flash_attention_for_cpu.default,
]

Keep = Callable[..., AbstractContextManager[object]]
"""`made_again` or `keeping`."""


@dataclass(frozen=True)
class _Recipe:
    """What is kept in place of a value: how to make it, and the shape autograd wanted it in."""

    make: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    shape: torch.Size

    def follow(self) -> Tensor:
        with torch.no_grad():
            return self.make(*self.inputs).view(self.shape)


def made_again(value: Tensor, make: Callable[..., Tensor], *inputs: Tensor) -> AbstractContextManager[object]:
    """What runs within keeps no `value`, which is `make(*inputs)`, but its inputs, and makes it again in the backward.

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
    """What `forward(*inputs)` makes, to be compiled: tells the compiler to keep what products and attention make alone.

    Without collectives inside, at which a compiler stops.
    """
    contexts = partial(create_selective_checkpoint_contexts, COSTLY)
    made: Tensor = checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
    return made


def keeping(value: Tensor, make: Callable[..., Tensor], *inputs: Tensor) -> AbstractContextManager[object]:
    """What runs within keeps `value` as autograd does."""
    del value, make, inputs
    return nullcontext()
