"""Cross entropy of the head's logits, a few positions at a time, to avoid an fp32 copy of all logits.

The backward recomputes its terms from the logits. Under tensor parallelism each rank has the logits of a part of the
vocabulary, and ranks exchange three numbers per token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from holmes_runtime.config.model_shape import LOSS_CHUNK_BYTES
from holmes_runtime.model.tensor_parallel import TensorParallel, timed_group


def cross_entropy(logits: Tensor, targets: Tensor, vocab_size: int, tp: TensorParallel, overwrites: bool) -> Tensor:
    """Return the mean loss, an fp32 scalar, of logits (batch, seq, own vocabulary) against int64 targets (batch, seq).

    A target below zero has a loss of 0, which counts in the mean. With `overwrites` the backward overwrites the logits
    with the gradient, so they must not be used after it.
    """
    first = tp.part(vocab_size).start
    loss: Tensor = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, 1), targets.flatten() - first, targets.flatten() >= 0, tp, overwrites
    )
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The loss as one function, which keeps the logits and the logarithm of each token's sum of exponentials."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, predicted: Tensor, tp: TensorParallel, overwrites: bool
    ) -> Tensor:
        """Return a scalar. logits: (tokens, own vocabulary); targets: (tokens,), counted from the first own entry;
        predicted: booleans (tokens,).
        """
        is_own = predicted & (targets >= 0) & (targets < logits.shape[1])
        columns = targets.masked_fill(~is_own, 0)
        losses = torch.cat(
            [
                functional.cross_entropy(chunk.float(), own, reduction="none")
                for chunk, own in zip_chunks(logits, columns)
            ]
        )
        picked = logits.gather(1, columns.unsqueeze(1)).squeeze(1).float()
        log_sums = losses + picked
        if tp.group is not None:
            log_sums, picked = over_shards(log_sums, picked.masked_fill(~is_own, 0.0), tp)
            losses = log_sums - picked
        ctx.save_for_backward(logits, columns, is_own, log_sums, predicted)
        ctx.overwrites = overwrites
        return losses.where(predicted, 0.0).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Return (probability - one at the target) / tokens, in the logits' type: (tokens, own vocabulary)."""
        logits, columns, is_own, log_sums, predicted = ctx.saved_tensors
        result = logits if ctx.overwrites else torch.empty_like(logits)
        scales = gradients[0] / len(logits) * predicted
        for chunk, to, own, hits, log_sum, scale in zip_chunks(
            logits, result, columns, is_own.float(), log_sums, scales
        ):
            gradient = torch.sub(chunk, log_sum.unsqueeze(1)).exp_()  # fp32, as the sums are
            gradient.scatter_add_(1, own.unsqueeze(1), -hits.unsqueeze(1))
            to.copy_(gradient.mul_(scale.unsqueeze(1)))
        return result, None, None, None, None


def over_shards(log_sums: Tensor, picked: Tensor, tp: TensorParallel) -> tuple[Tensor, Tensor]:
    """Return log sums and target logits over the whole vocabulary, from those on each shard: (tokens,)."""
    highest = log_sums.clone()
    with timed_group(tp) as group:
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
    sums = torch.stack([(log_sums - highest).exp(), picked])
    with timed_group(tp) as group:
        dist.all_reduce(sums, group=group)
    return highest + sums[0].log(), sums[1]


def zip_chunks(logits: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield `logits` (tokens, vocabulary) and `others` (tokens, ..) in matching chunks of a few tokens."""
    tokens = max(1, LOSS_CHUNK_BYTES // (4 * logits.shape[1]))
    return zip(*(torch.split(each, tokens) for each in (logits, *others)), strict=True)
