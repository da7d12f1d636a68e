"""A stage that sleeps instead of computing, so that a job's traffic can be tried on the real network without GPUs.

Every gradient is one, so the averaged gradients are ones too, and the global gradient norm is the square root of the
number of parameters. A rehearsal thus also shows that every bucket was reduced.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from holmes_runtime.config.model_shape import (
    ModelShape,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    table_parameters,
)
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import EmulationSettings
from holmes_runtime.config.trainable import Lora, adapter_parameters

EMULATED_TABLE = "layers.table.weight"  # of a tied model under a pipeline, on its first and its last stage
# Share of a layer's backward before its gradient is ready. In a real layer the gradients of its matrices are ready one
# after the other. The rest of the sleep covers the time to add this one.
GRADIENT_READY = 0.75
# Share of a layer's backward that zero-bubble may delay: the gradients of weights and of inputs cost the same.
WEIGHT_HALF = 0.5
MAX_OVERSLEPT_S = 0.005  # lateness of timers on a busy machine; a process that is held up for longer is slow


class ComputeClock:
    """A clock that sleeps until deadlines, so that the emulation's own cost is part of the emulated compute.

    If a timer was late, the next work is shorter by that time.
    """

    def __init__(self) -> None:
        self._deadline_s = self._late_s = 0.0

    def begin(self) -> None:
        """Start a forward or backward of the stage."""
        self._deadline_s, self._late_s = time.monotonic() - self._late_s, 0.0

    def spend(self, seconds: float) -> None:
        """Sleep until `seconds` after the end of the previous work."""
        self._deadline_s += seconds
        left_s = self._deadline_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
            self._late_s = min(MAX_OVERSLEPT_S, time.monotonic() - self._deadline_s)


class _Weight(torch.autograd.Function):
    """The use of a weight. It adds nothing to hidden states, and sleeps in the backward before it gives a gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, clock: ComputeClock, backward_s: float, gradient: float) -> Tensor:
        """weight: (elements,); result: a scalar zero."""
        ctx.weight_shape, ctx.clock, ctx.backward_s, ctx.gradient = weight.shape, clock, backward_s, gradient
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Return `gradient` for each element of the weight, as one expanded value that takes no memory."""
        ctx.clock.spend(ctx.backward_s)
        return gradients[0].new_full((), ctx.gradient).expand(ctx.weight_shape), None, None, None


class _Sleep(torch.autograd.Function):
    """A pass-through that sleeps before it returns hidden states or gradients."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, clock: ComputeClock, forward_s: float, backward_s: float) -> Tensor:
        """hidden and result: (micro_batch_size, seq_length, hidden_size)."""
        ctx.clock, ctx.backward_s = clock, backward_s
        clock.spend(forward_s)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.clock.spend(ctx.backward_s)
        return gradients[0], None, None, None


class EmulatedLayer(nn.Module):
    """One weight of `elements` numbers, and the sleeps of its forward and of the two halves of its backward.

    `seconds`: of the forward, the input half and the weight half. `gradient`: the gradient of each element. The weight
    is added to the hidden states, so a schedule can run either half of the backward alone.
    """

    def __init__(
        self, elements: int, clock: ComputeClock, seconds: tuple[float, float, float], gradient: float = 1.0
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))
        self.clock, self.seconds, self.gradient = clock, seconds, gradient

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden and result: (micro_batch_size, seq_length, hidden_size)."""
        forward_s, input_s, weight_s = self.seconds
        if forward_s or input_s:
            hidden = _Sleep.apply(hidden, self.clock, forward_s, input_s)  # type: ignore[no-untyped-call]
        used: Tensor = _Weight.apply(  # type: ignore[no-untyped-call]
            self.weight, self.clock, weight_s, self.gradient
        )
        return hidden + used.to(hidden.dtype)


class EmulatedStage(nn.Module):
    """A stand-in for `DecoderStage` with as many parameters in each layer and hidden states of the same shape.

    The seconds of `emulation` are per micro-batch. Embeddings and head have parameters but take no time. The last stage
    returns hidden states instead of logits. If the token table has a copy at the other end of the pipeline, each end
    has half of its gradient, so that their sum is one. With `lora` there are only the parameters of adapters.
    """

    def __init__(
        self,
        shape: ModelShape,
        stage: Stage,
        emulation: EmulationSettings,
        weight_share: float = GRADIENT_READY,
        dtype: torch.dtype = torch.float32,
        lora: Lora | None = None,
    ) -> None:
        super().__init__()
        self.is_first = stage.first_layer == 0
        self.hidden_size, self.dtype = shape.hidden_size, dtype
        self.clock = ComputeClock()
        backward_s = emulation.backward_s_per_layer
        seconds = (emulation.forward_s_per_layer, (1 - weight_share) * backward_s, weight_share * backward_s)
        free = (0.0, 0.0, 0.0)
        is_last = stage.stop_layer == shape.num_layers
        trains_all = lora is None
        in_layer = adapter_parameters(shape, lora) if lora is not None else layer_parameters(shape)
        table = table_parameters(shape) if trains_all and shape.tied_embeddings and self.is_first != is_last else 0
        # In the order of the forward, as in the real model: gradients are sent in the reverse order.
        self.layers = nn.ModuleDict()
        if trains_all and self.is_first and embedding_parameters(shape) > table:
            self.layers["embedding"] = EmulatedLayer(embedding_parameters(shape) - table, self.clock, free)
        if self.is_first and table:
            self.layers["table"] = EmulatedLayer(table, self.clock, free, 0.5)
        for layer in range(stage.first_layer, stage.stop_layer):
            self.layers[str(layer)] = EmulatedLayer(in_layer, self.clock, seconds)
        if trains_all and is_last:
            self.layers["head"] = EmulatedLayer(head_parameters(shape, 1, self.is_first) - table, self.clock, free)
        if is_last and table:
            self.layers["table"] = EmulatedLayer(table, self.clock, free, 0.5)
        self.to(dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return hidden states (micro_batch_size, seq_length, hidden_size), after the sleeps of this stage's layers.

        inputs: int64 tokens (micro_batch_size, seq_length) on the first stage, else hidden states.
        """
        self.clock.begin()
        hidden = inputs
        if self.is_first:
            hidden = torch.ones(*inputs.shape, self.hidden_size, dtype=self.dtype, device=inputs.device)
        for layer in self.layers.values():
            hidden = layer(hidden)
        if hidden.requires_grad:
            # A backward of the stage starts.
            hidden.register_hook(lambda _: self.clock.begin())  # type: ignore[no-untyped-call]
        return hidden


def mean_activation(logits: Tensor, targets: Tensor, teacher: object = None) -> Tensor:
    """Return the loss of an emulated run: the mean of the hidden states, which is one."""
    del targets, teacher
    return logits.float().mean()
