"""A backward in two halves gives the gradients of a whole one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import EmulationSettings
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.model.emulated import EmulatedStage
from holmes_runtime.parallel.split_backward import backward_input, backward_weight

from .launched_runs import TINY, TINY_LLAMA, TINY_MIXTRAL


class TwoOutputs(torch.autograd.Function):
    """Two products of one input, as one node of the graph that gets two gradients."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, first, second)
        return hidden @ first, hidden @ second

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        hidden, first, second = ctx.saved_tensors
        one, two = gradients
        return (
            one @ first.T + two @ second.T,
            hidden.flatten(0, -2).T @ one.flatten(0, -2),
            hidden.flatten(0, -2).T @ two.flatten(0, -2),
        )


class Branches(nn.Module):
    """Layers that share a weight, a parameter used twice, one left out, and a node of two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.first, self.second = (nn.Parameter(torch.randn(8, 8) / 3) for _ in range(3))
        self.scale, self.unused = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = functional.gelu(hidden @ self.shared) * self.scale
        one, two = TwoOutputs.apply(hidden, self.first, self.second)  # type: ignore[no-untyped-call]
        hidden = hidden + torch.tanh(one) * two * self.scale
        return hidden + functional.gelu(hidden @ self.shared)


def branches() -> tuple[nn.Module, Tensor]:
    return Branches(), torch.randn(2, 3, 8)


def decoder(shape: Any, recompute: Any) -> Callable[[], tuple[nn.Module, Tensor]]:
    def make() -> tuple[nn.Module, Tensor]:
        stage = DecoderStage(shape, Stage(1, 1, 3), 7, recompute=recompute)
        return stage, torch.randn(2, shape.seq_length, shape.hidden_size)

    return make


def whole(module: nn.Module, hidden: Tensor, gradient: Tensor | None) -> list[Tensor | None]:
    output = module(hidden)
    torch.autograd.backward(output.sum() if gradient is None else output, gradient)
    return [hidden.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.parametrize("from_loss", [False, True], ids=["gradient", "loss"])
@pytest.mark.parametrize(
    "make",
    [
        branches,
        decoder(TINY, "none"),
        decoder(TINY_LLAMA, "none"),
        decoder(TINY_LLAMA, "selective"),
        decoder(TINY_MIXTRAL, "selective"),
    ],
    ids=["branches", "gpt", "llama", "recomputed", "experts"],
)
def test_two_halves_add_what_a_whole_backward_adds(
    make: Callable[[], tuple[nn.Module, Tensor]], from_loss: bool
) -> None:
    torch.manual_seed(0)
    module, values = make()
    gradient = None if from_loss else torch.randn_like(module(values).detach())
    expected = whole(module, values.clone().requires_grad_(), gradient)
    expected[1:] = [None if grad is None else 2 * grad for grad in expected[1:]]  # the halves add to it

    hidden = values.clone().requires_grad_()
    output = module(hidden)
    wanted, groups = backward_input(output.sum() if from_loss else output, gradient, hidden, module.parameters())
    for group in reversed(groups):
        backward_weight(group)

    for got, want in zip([wanted, *(parameter.grad for parameter in module.parameters())], expected, strict=True):
        if want is None:
            assert got is None
        else:
            torch.testing.assert_close(got, want)


def test_last_layers_come_last_and_no_parameter_twice() -> None:
    stage = DecoderStage(TINY, Stage(1, 1, 3), 7)
    hidden = torch.randn(2, TINY.seq_length, TINY.hidden_size, requires_grad=True)
    output = stage(hidden)
    _, groups = backward_input(output, torch.ones_like(output), hidden, stage.parameters())
    order = [id(parameter) for group in groups for parameter in group.parameters]
    assert order == [id(parameter) for parameter in stage.parameters()]


def test_either_half_of_an_emulated_backward_runs_alone() -> None:
    stage = EmulatedStage(TINY, Stage(1, 1, 2), EmulationSettings(0, 0, {}))
    hidden = torch.ones(1, 32, 32, requires_grad=True)
    output = stage(hidden)

    wanted, groups = backward_input(output, torch.ones_like(output), hidden, stage.parameters())
    for group in groups:
        backward_weight(group)

    assert torch.equal(wanted, torch.ones_like(hidden))
    assert all(p.grad is not None and torch.equal(p.grad, torch.ones_like(p)) for p in stage.parameters())
