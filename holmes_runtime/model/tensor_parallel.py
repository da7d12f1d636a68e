"""Matrices and sequences split over the ranks of a tensor group, and the collectives between them.

A matrix is split by rows (outputs) or columns (inputs). Between split matrices each rank has all channels of its own
stretch of the sequence, which it also sends over pipeline edges. Before a matrix split by rows the ranks gather the
sequence. After one split by columns they sum the partial results, and each keeps its stretch. The gathered sequence is
not kept for the backward but gathered again while the gradient of the layer's input is computed.
Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn import functional

from holmes_runtime.comm.shard_exchange import start_all_gather, start_reduce_scatter
from holmes_runtime.comm.stopwatch import Stopwatch


@dataclass(frozen=True)
class TensorParallel:
    """This rank's place in its tensor group. Without a `group` every collective is the identity.

    The group's collectives block computation, and count as lap "tp" of `stopwatch`.
    """

    group: ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    stopwatch: Stopwatch | None = None

    def part(self, length: int) -> range:
        """Return this rank's share of `length` rows, columns or positions. Shares differ by at most one."""
        return range(length * self.rank // self.size, length * (self.rank + 1) // self.size)

    def gather_linear(self, hidden: Tensor, *linears: nn.Linear, more: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """Apply each of `linears`, split by rows, to the whole sequence: (batch, seq, own rows) each.

        hidden: this rank's stretch (batch, seq / tp, channels). `more` are matrices (rows, channels) that all shards
        hold whole. Their products (batch, seq, rows) are equal on all shards, and each has a part of their gradients.
        """
        if self.group is None:
            return (*(linear(hidden) for linear in linears), *(functional.linear(hidden, each) for each in more))
        weights = [*(linear.weight for linear in linears), *more]
        biases = [*(linear.bias for linear in linears), *(None for _ in more)]
        products: tuple[Tensor, ...] = _run(_GatherLinear, hidden, self, *weights, *biases)
        return products

    def gather_product(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Return `gather_linear` of one `weight` (own rows, channels) that has no bias."""
        if self.group is None:
            return functional.linear(hidden, weight)
        product: Tensor = _run(_GatherLinear, hidden, self, weight, None)[0]
        return product

    def gather(self, stretch: Tensor) -> Tensor:
        """Return the whole sequence (batch, seq, channels); stretch: this rank's (batch, seq / tp, channels).

        Each rank has a part of the gradient of the whole sequence, which the backward sums.
        """
        if self.group is None:
            return stretch
        whole: Tensor = _run(_Gather, stretch, self)
        return whole

    def scatter_sum(self, partial: Tensor) -> Tensor:
        """Sum `partial` (batch, seq, channels) over ranks. Return this rank's stretch (batch, seq / tp, channels)."""
        if self.group is None:
            return partial
        stretch: Tensor = _run(_ScatterSum, partial, self)
        return stretch

    def embed(self, tokens: Tensor, weight: Tensor, vocab_size: int) -> Tensor:
        """Return embeddings (batch, seq / tp, channels) of int64 tokens (batch, seq); weight: this rank's rows."""
        if self.group is None:
            return functional.embedding(tokens, weight)
        own = self.part(vocab_size)
        foreign = (tokens < own.start) | (tokens >= own.stop)
        rows = functional.embedding((tokens - own.start).masked_fill(foreign, 0), weight)
        return self.scatter_sum(rows.masked_fill(foreign.unsqueeze(-1), 0.0))


ALONE = TensorParallel()


class MeetsInLayers(Protocol):
    """A rank's place in a group whose collectives block computation inside layers."""

    @property
    def group(self) -> ProcessGroup | None: ...

    @property
    def stopwatch(self) -> Stopwatch | None: ...


@contextmanager
def timed_group(part: MeetsInLayers) -> Iterator[ProcessGroup]:
    """Yield the group of `part`, and count the time inside as lap "tp"."""
    assert part.group is not None
    with part.stopwatch.lap("tp") if part.stopwatch is not None else nullcontext():
        yield part.group


class _BackwardHalves:
    """The gradients that the current backward computes: of inputs, weights or both."""

    inputs = weights = True


_HALVES = _BackwardHalves()


@contextmanager
def backward_half(kind: str) -> Iterator[None]:
    """Run the backward inside as the "input" half, the "weight" half or "full": see `split_backward.py`.

    Autograd would run the whole backward of a custom function in either half, so the function reads the half here.
    """
    _HALVES.inputs, _HALVES.weights = kind != "weight", kind != "input"
    try:
        yield
    finally:
        _HALVES.inputs = _HALVES.weights = True


def _start_gather(part: Tensor, tp: TensorParallel) -> Callable[[], Tensor]:
    """Start to gather the whole sequence from stretches. Return a function that waits for it: (batch, seq, channels).

    part: this rank's stretch (batch, seq / tp, channels).
    """
    assert tp.group is not None
    batch, seq, channels = part.shape
    stretches = part.new_empty(tp.size, batch, seq, channels)
    stretches[tp.rank] = part
    gathering = start_all_gather(stretches.view(-1), tp.group)

    def wait() -> Tensor:
        with timed_group(tp):
            gathering()
        return stretches.transpose(0, 1).reshape(batch, -1, channels)

    return wait


def _start_scatter_sum(whole: Tensor, tp: TensorParallel) -> Callable[[], Tensor]:
    """Start to sum `whole` (batch, seq, channels) over ranks. Return a function that waits for this rank's stretch."""
    assert tp.group is not None
    batch, seq, channels = whole.shape
    stretches = whole.view(batch, tp.size, -1, channels).transpose(0, 1).contiguous()
    scattering = start_reduce_scatter(stretches.flatten(), tp.group)

    def wait() -> Tensor:
        with timed_group(tp):
            return scattering().view(batch, seq // tp.size, channels)

    return wait


# A compiler stops at collectives, and torch 2.11 fails if it stops inside a custom function, so both stay uncompiled.
# torch.compiler.disable does the same but imports the compiler, which takes most of a second at each rank's start.
@torch._disable_dynamo  # type: ignore[attr-defined]
def _run(function: type[torch.autograd.Function], *inputs: object) -> Any:
    return function.apply(*inputs)  # type: ignore[no-untyped-call]


class _GatherLinear(torch.autograd.Function):
    """Gathers stretches and multiplies them by weights. It keeps only the stretch, to gather again in the backward.

    If all weights and biases are frozen, it does neither.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, tp: TensorParallel, *weights_and_biases: Any) -> tuple[Tensor, ...]:
        """part: (batch, seq / tp, channels); then all weights (own rows, channels); then all biases (own rows,)."""
        ctx.tp, count = tp, len(weights_and_biases) // 2
        weights, biases = weights_and_biases[:count], weights_and_biases[count:]
        ctx.save_for_backward(part if any(ctx.needs_input_grad[2:]) else None, *weights)
        whole = _start_gather(part, tp)()
        return tuple(functional.linear(whole, weight, bias) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of stretch, weights and biases. Transfers for one overlap the computing of another."""
        part, *weights = ctx.saved_tensors
        flat = [gradient.flatten(0, 1) for gradient in gradients]  # (tokens, own rows) each
        count, (of_input, _, *trained) = len(weights), ctx.needs_input_grad
        gathering = _start_gather(part, ctx.tp) if _HALVES.weights and any(trained) else None
        scattering = None
        if _HALVES.inputs and of_input:
            whole = flat[0] @ weights[0]
            for gradient, weight in zip(flat[1:], weights[1:], strict=True):
                whole.addmm_(gradient, weight)
            scattering = _start_scatter_sum(whole.view(*gradients[0].shape[:2], -1), ctx.tp)
        found: list[Tensor | None] = [None] * (2 * count)
        if gathering is not None:
            inputs = gathering().flatten(0, 1)
            for place, (weight, bias) in enumerate(zip(trained[:count], trained[count:], strict=True)):
                found[place] = flat[place].t() @ inputs if weight else None
                found[count + place] = flat[place].sum(0) if bias else None
        return (scattering() if scattering is not None else None, None, *found)


class _Gather(torch.autograd.Function):
    """Gathers stretches. The backward sums the ranks' gradients of the whole and keeps this rank's stretch."""

    @staticmethod
    def forward(ctx: Any, stretch: Tensor, tp: TensorParallel) -> Tensor:
        """stretch: (batch, seq / tp, channels); result: (batch, seq, channels)."""
        ctx.tp = tp
        return _start_gather(stretch, tp)()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _start_scatter_sum(gradients[0].contiguous(), ctx.tp)(), None


class _ScatterSum(torch.autograd.Function):
    """Sums partial results and keeps this rank's stretch. The backward gathers the gradients of all stretches."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, tp: TensorParallel) -> Tensor:
        """partial: (batch, seq, channels); result: (batch, seq / tp, channels)."""
        ctx.tp = tp
        return _start_scatter_sum(partial, tp)()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _start_gather(gradients[0], ctx.tp)(), None
