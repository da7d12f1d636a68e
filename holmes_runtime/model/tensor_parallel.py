"""Layers split over the ranks of a tensor group, and sequences between them: the few operations where they meet.

A matrix is split by its rows (the outputs) or its columns (the inputs). Between the split matrices each rank keeps all
channels of its own stretch of the sequence, which is also what crosses pipeline edges. Entering a split layer gathers
the sequence; leaving it adds up the partial results and keeps the own stretch.
Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from holmes_runtime.comm.shard_exchange import start_all_gather, start_reduce_scatter
from holmes_runtime.comm.stopwatch import Stopwatch


@dataclass(frozen=True)
class TensorParallel:
    """This rank's part in its tensor group; `group` None, one rank, makes every operation the identity.

    What the group's collectives take, all of it in the way of the computation, is lap "tp" of `stopwatch`.
    """

    group: ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    stopwatch: Stopwatch | None = None

    def part(self, length: int) -> range:
        """This rank's share of `length` rows, columns or positions; shares differ by one where they must."""
        return range(length * self.rank // self.size, length * (self.rank + 1) // self.size)

    def gather(self, hidden: Tensor) -> Tensor:
        """(batch, seq, channels) from this rank's stretch (batch, seq / tp, channels)."""
        if self.group is None:
            return hidden
        gathered: Tensor = _Gather.apply(hidden, self)  # type: ignore[no-untyped-call]
        return gathered

    def scatter_sum(self, partial: Tensor) -> Tensor:
        """This rank's stretch (batch, seq / tp, channels) of the sum of `partial` (batch, seq, channels) over ranks."""
        if self.group is None:
            return partial
        scattered: Tensor = _ScatterSum.apply(partial, self)  # type: ignore[no-untyped-call]
        return scattered

    def embed(self, tokens: Tensor, weight: Tensor, vocab_size: int) -> Tensor:
        """Embeddings (batch, seq / tp, channels) of int64 tokens (batch, seq); weight: this rank's rows."""
        if self.group is None:
            return functional.embedding(tokens, weight)
        own = self.part(vocab_size)
        foreign = (tokens < own.start) | (tokens >= own.stop)
        rows = functional.embedding((tokens - own.start).masked_fill(foreign, 0), weight)
        return self.scatter_sum(rows.masked_fill(foreign.unsqueeze(-1), 0.0))

    def cross_entropy(self, logits: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
        """Mean loss in fp32, a scalar, of logits (batch, seq, own vocabulary) against int64 targets (batch, seq)."""
        if self.group is None:
            return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss: Tensor = _SplitCrossEntropy.apply(  # type: ignore[no-untyped-call]
            logits.flatten(0, 1).float(), targets.flatten() - self.part(vocab_size).start, self
        )
        return loss


ALONE = TensorParallel()


@contextmanager
def _timed_group(tp: TensorParallel) -> Iterator[ProcessGroup]:
    """The group of `tp`, while its stopwatch runs."""
    assert tp.group is not None
    with tp.stopwatch.lap("tp") if tp.stopwatch is not None else nullcontext():
        yield tp.group


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _gather(part: Tensor, tp: TensorParallel) -> Tensor:
    """All stretches (batch, seq / tp, channels) of a sequence joined: (batch, seq, channels)."""
    batch, seq, channels = part.shape
    stretches = part.new_empty(tp.size, batch, seq, channels)
    stretches[tp.rank] = part
    with _timed_group(tp) as group:
        start_all_gather(stretches.view(-1), group)()
    return stretches.view(-1, batch, seq, channels).transpose(0, 1).reshape(batch, -1, channels)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _scatter_sum(whole: Tensor, tp: TensorParallel) -> Tensor:
    """The own stretch (batch, seq / tp, channels) of the sum of `whole` (batch, seq, channels) over the group."""
    batch, seq, channels = whole.shape
    stretches = whole.view(batch, tp.size, -1, channels).transpose(0, 1).contiguous()
    with _timed_group(tp) as group:
        summed = start_reduce_scatter(stretches.flatten(), group)()
    return summed.view(batch, seq // tp.size, channels)


class _Gather(torch.autograd.Function):
    """Gathers stretches; the gradients of a stretch, one from each rank, are added up."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, tp: TensorParallel) -> Tensor:
        """part: (batch, seq / tp, channels); result: (batch, seq, channels)."""
        ctx.tp = tp
        whole: Tensor = _gather(part, tp)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The sum of this stretch's gradients (batch, seq / tp, channels)."""
        return _scatter_sum(gradients[0], ctx.tp), None


class _ScatterSum(torch.autograd.Function):
    """Adds up partial results and keeps a stretch; its gradient goes to all who added to it."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, tp: TensorParallel) -> Tensor:
        """partial: (batch, seq, channels); result: (batch, seq / tp, channels)."""
        ctx.tp = tp
        stretch: Tensor = _scatter_sum(partial, tp)
        return stretch

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The gradients of all stretches (batch, seq, channels)."""
        return _gather(gradients[0], ctx.tp), None


class _SplitCrossEntropy(torch.autograd.Function):
    """Cross entropy over a vocabulary split by ranks: three numbers a token travel instead of all logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, tp: TensorParallel) -> Tensor:
        """logits: fp32 (tokens, own vocabulary); targets: (tokens,), counted from the first own entry. A scalar."""
        highest = logits.amax(1)
        with _timed_group(tp) as group:
            dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
        shifted = logits - highest.unsqueeze(1)
        own = (targets >= 0) & (targets < logits.shape[1])
        rows = torch.arange(len(targets), device=logits.device)
        columns = targets.masked_fill(~own, 0)
        sums = torch.stack([shifted.exp().sum(1), shifted[rows, columns].masked_fill(~own, 0.0)])  # (2, tokens)
        with _timed_group(tp) as group:
            dist.all_reduce(sums, group=group)
        ctx.save_for_backward(shifted - sums[0].log().unsqueeze(1), own, rows, columns)
        return (sums[0].log() - sums[1]).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """(probability - one at the target) / tokens: (tokens, own vocabulary)."""
        log_probabilities, own, rows, columns = ctx.saved_tensors
        gradient = log_probabilities.exp()
        gradient[rows, columns] -= own.float()
        return gradient * (gradients[0] / len(rows)), None, None
