"""The loss by chunks against torch's of all logits at once, and what it keeps in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from holmes_runtime.config.model_shape import LOSS_CHUNK_BYTES
from holmes_runtime.model.head_loss import cross_entropy
from holmes_runtime.model.tensor_parallel import ALONE
from tests.seeds import few_of

VOCAB = 40000
SEQ = 1000  # 160 MB of fp32 logits, in three chunks


def logits_and_targets(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, SEQ, VOCAB, generator=generator).to(dtype).requires_grad_()
    return logits, torch.randint(VOCAB, (1, SEQ), generator=generator)


@pytest.mark.parametrize(
    ("dtype", "overwrites"), few_of(1, [(torch.float32, True), (torch.float32, False), (torch.bfloat16, True)])
)
def test_loss_and_gradient_are_those_of_all_logits_at_once(dtype: torch.dtype, overwrites: bool) -> None:
    logits, targets = logits_and_targets(dtype)
    expected = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
    (expected_gradient,) = torch.autograd.grad(expected, logits)

    loss = cross_entropy(logits, targets, VOCAB, ALONE, overwrites)
    (gradient,) = torch.autograd.grad(loss, logits)

    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-9)
    assert (gradient.data_ptr() == logits.data_ptr()) is overwrites


@pytest.mark.parametrize("overwrites", [True, False])
def test_a_target_below_zero_has_neither_loss_nor_gradient(overwrites: bool) -> None:
    logits = torch.randn(2, 6, 50, requires_grad=True)
    targets = torch.randint(50, (2, 6))
    targets[0, 1:4], targets[1, 5] = ~targets[0, 1:4], -1
    expected = functional.cross_entropy(logits.flatten(0, 1), targets.flatten().clamp(min=-1), ignore_index=-1)
    (expected_gradient,) = torch.autograd.grad(expected, logits)

    loss = cross_entropy(logits, targets, 50, ALONE, overwrites) * (12 / 8)  # of 12 targets, 8 are predicted
    (gradient,) = torch.autograd.grad(loss, logits)

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    assert gradient[0, 1:4].eq(0).all()


class LargestResult(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes of the largest tensor that is made, views apart; with a `dtype`, of those of that type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype, self.most_bytes = dtype, 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        made = () if operator.is_view else tree_leaves(result)
        sizes = [tensor.nbytes for tensor in made if isinstance(tensor, Tensor) and tensor.dtype == self.dtype]
        self.most_bytes = max(self.most_bytes, *sizes, 0)
        return result


@pytest.mark.slow
def test_no_fp32_tensor_is_larger_than_a_chunk() -> None:
    logits, targets = logits_and_targets(torch.bfloat16)

    with LargestResult(torch.float32) as largest:
        torch.autograd.backward(cross_entropy(logits, targets, VOCAB, ALONE, overwrites=True))

    assert LOSS_CHUNK_BYTES / 2 < largest.most_bytes <= LOSS_CHUNK_BYTES


def test_a_second_backward_through_overwritten_logits_is_refused() -> None:
    logits, targets = torch.randn(1, 3, 5, requires_grad=True), torch.tensor([[0, 1, 2]])
    loss = cross_entropy(logits * 1.0, targets, 5, ALONE, overwrites=True)
    torch.autograd.backward(loss, retain_graph=True)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(loss)
