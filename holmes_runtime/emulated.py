"""A stage that sleeps instead of computing: the same traffic on the real network, before there are GPUs.

Gradients are ones, so the averaged gradient of every element is exactly one and the global gradient norm is the
square root of the number of parameters: a rehearsal also shows that every bucket was reduced.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from holmes_runtime.run_config import Emulation, ModelShape, Stage

# How much of a layer's backward has passed when its gradient is there. In a real layer the gradients of its matrices
# come one after the other; what is left of the sleep covers the time it takes to add this one.
GRADIENT_READY = 0.75


def block_elements(hidden_size: int) -> int:
    """Number of parameters of one GPT layer: 12 h^2 in its four matrices, 13 h in biases and norms."""
    return 12 * hidden_size**2 + 13 * hidden_size


def embedding_elements(shape: ModelShape) -> int:
    """Number of parameters of the token and position embeddings."""
    return (shape.vocab_size + shape.seq_length) * shape.hidden_size


def head_elements(shape: ModelShape) -> int:
    """Number of parameters of the final norm and the head."""
    return (2 + shape.vocab_size) * shape.hidden_size


class ComputeClock:
    """Sleeps to deadlines, so that what the emulation itself costs counts as part of the emulated compute."""

    def __init__(self) -> None:
        self._deadline_s = 0.0

    def begin(self) -> None:
        """A forward or backward of the stage starts now."""
        self._deadline_s = time.monotonic()

    def spend(self, seconds: float) -> None:
        """Returns `seconds` after the end of the previous piece of work."""
        self._deadline_s += seconds
        time.sleep(max(0.0, self._deadline_s - time.monotonic()))


class _Weight(torch.autograd.Function):
    """Passes hidden states on; in the backward, after a sleep, makes the gradient of the weight."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, clock: ComputeClock, backward_s: float) -> Tensor:
        """hidden and result: (micro_batch_size, seq_length, hidden_size); weight: (elements,)."""
        ctx.weight_shape, ctx.clock, ctx.backward_s = weight.shape, clock, backward_s
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """The gradient unchanged, and ones for the weight: one number expanded, which costs no memory to make."""
        ctx.clock.spend(ctx.backward_s)
        return gradients[0], gradients[0].new_ones(()).expand(ctx.weight_shape), None, None


class _Sleep(torch.autograd.Function):
    """Passes hidden states and gradients on, each after its sleep."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, clock: ComputeClock, forward_s: float, backward_s: float) -> Tensor:
        """hidden and result: (micro_batch_size, seq_length, hidden_size)."""
        ctx.clock, ctx.backward_s = clock, backward_s
        clock.spend(forward_s)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradient unchanged."""
        ctx.clock.spend(ctx.backward_s)
        return gradients[0], None, None, None


class _BackwardStart(torch.autograd.Function):
    """Starts the clock when the gradient of the stage's output arrives."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, clock: ComputeClock) -> Tensor:
        """hidden and result: (micro_batch_size, seq_length, hidden_size)."""
        ctx.clock = clock
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The gradient unchanged."""
        ctx.clock.begin()
        return gradients[0], None


class EmulatedStage(nn.Module):
    """Stands in for `GptStage`: as many parameters in each layer, hidden states of the same shape, sleeps as compute.

    Embeddings and head hold parameters and take no time. The last stage returns hidden states instead of logits.
    """

    def __init__(self, shape: ModelShape, stage: Stage, emulation: Emulation) -> None:
        super().__init__()
        self.is_first = stage.first_layer == 0
        self.hidden_size = shape.hidden_size
        self.clock = ComputeClock()
        self.emulation = emulation
        # Registered in the order of the forward, as in the real model: gradients are sent in the reverse order.
        self.embedding = _weight(embedding_elements(shape)) if self.is_first else None
        layers = range(stage.first_layer, stage.stop_layer)
        self.blocks = nn.ParameterList(_weight(block_elements(shape.hidden_size)) for _ in layers)
        self.head = _weight(head_elements(shape)) if stage.stop_layer == shape.num_layers else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Hidden states (micro_batch_size, seq_length, hidden_size), after the sleeps of this stage's layers.

        inputs: int64 tokens (micro_batch_size, seq_length) on the first stage, else hidden states.
        """
        self.clock.begin()
        hidden = inputs
        if self.embedding is not None:
            hidden = torch.ones(*inputs.shape, self.hidden_size, device=inputs.device)
            hidden = self._weigh(hidden, self.embedding, 0.0)
        forward_s, backward_s = self.emulation.forward_s_per_layer, self.emulation.backward_s_per_layer
        for weight in self.blocks:
            hidden = _Sleep.apply(  # type: ignore[no-untyped-call]
                hidden, self.clock, forward_s, (1 - GRADIENT_READY) * backward_s
            )
            hidden = self._weigh(hidden, weight, GRADIENT_READY * backward_s)
        if self.head is not None:
            hidden = self._weigh(hidden, self.head, 0.0)
        result: Tensor = _BackwardStart.apply(hidden, self.clock)  # type: ignore[no-untyped-call]
        return result

    def _weigh(self, hidden: Tensor, weight: nn.Parameter, backward_s: float) -> Tensor:
        """hidden (micro_batch_size, seq_length, hidden_size) unchanged; its backward makes the weight's gradient."""
        result: Tensor = _Weight.apply(hidden, weight, self.clock, backward_s)  # type: ignore[no-untyped-call]
        return result


def _weight(elements: int) -> nn.Parameter:
    """A zero parameter (elements,)."""
    return nn.Parameter(torch.zeros(elements))


def mean_activation(hidden: Tensor, targets: Tensor) -> Tensor:
    """The loss of an emulated run: the mean of hidden (batch, seq, hidden_size), which is one; targets are unused."""
    del targets
    return hidden.mean()
