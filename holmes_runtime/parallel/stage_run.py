"""One stage of a rank as a schedule runs it: a forward, a backward or half of one, one micro-batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from holmes_runtime.model.build_stage import LossFunction, StageModule
from holmes_runtime.model.distilled_loss import SoftTargets
from holmes_runtime.parallel.split_backward import WeightGroup, backward_input, backward_weight

GradientAdded = Callable[[torch.nn.Parameter], None]
Targets = tuple[Tensor, SoftTargets | None]


class StageRun:
    """A stage's module, and its micro-batches between forward and backward. Gradients are added to `.grad`."""

    def __init__(self, built: StageModule, loss_function: LossFunction | None, gradient_added: GradientAdded) -> None:
        """`loss_function` is for the model's last stage, and None on others."""
        self.index = built.stage.index
        self._module, self._loss_function, self._gradient_added = built.module, loss_function, gradient_added
        # The inputs, the output or loss, and the edge of the output, which keeps its graph alive without the loss.
        self._in_flight: dict[int, tuple[Tensor, Tensor, GradientEdge]] = {}
        # For the weight half: an object that keeps the graph alive, its gradient on the first stage, and groups.
        self._later: dict[int, tuple[Tensor | GradientEdge, Tensor | None, Sequence[WeightGroup]]] = {}
        self.extremes: list[Tensor] = []  # smallest and largest output of each micro-batch's forward, if it is sent on

    def forward(self, microbatch: int, inputs: Tensor, more: Sequence[Tensor | int], targets: Targets | None) -> Tensor:
        """Return the hidden states of one micro-batch, detached; on the last stage, return its loss.

        inputs: tokens int64 (b, s) on the first stage, otherwise hidden states (b, s / tp, h).
        """
        if self.index > 0:
            inputs = inputs.detach().requires_grad_()
        output: Tensor = self._module(inputs, *more)
        edge = get_gradient_edge(output)
        if self._loss_function is not None:
            assert targets is not None
            output = self._loss_function(output, *targets)
        else:
            self.extremes.append(torch.stack(output.detach().aminmax()))
        self._in_flight[microbatch] = (inputs, output, edge)
        return output.detach()

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """Run a whole backward. Return the gradient of the received hidden states, None on the first stage.

        gradient: that of the output, as sent by the next stage; None for a loss.
        """
        inputs, output, _ = self._in_flight.pop(microbatch)
        torch.autograd.backward(output, gradient)
        return inputs.grad

    def backward_input(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """Return what `backward` does, but leave the parameters' gradients to `backward_weight`.

        The first stage needs no gradient of its input, so it runs its whole backward as the weight half.
        """
        inputs, output, edge = self._in_flight.pop(microbatch)
        if self.index == 0:
            self._later[microbatch] = (output, gradient, ())
            return None
        wanted, groups = backward_input(output, gradient, inputs, self._module.parameters())
        self._later[microbatch] = (edge, None, groups)
        return wanted

    def backward_weight(self, microbatch: int) -> None:
        """Run the weight half, last layers first. Hooks of parameters fire only on the first stage."""
        kept, gradient, groups = self._later.pop(microbatch)
        if isinstance(kept, Tensor):
            torch.autograd.backward(kept, gradient)
        for group in reversed(groups):
            backward_weight(group)
            for parameter in group.parameters:
                self._gradient_added(parameter)
