"""Cross entropy mixed with the divergence from a teacher's likeliest tokens, a few positions at a time.

Let z be the logits of a position, t its target, T the temperature and w the weight. Let p be the teacher's
probabilities: the softmax of its logarithms / T, over the tokens that it has. The loss is

    (1 - w) (logsumexp(z) - z_t) + w T^2 sum_k p_k (log p_k - log softmax(z / T)_k).

The softmax of z / T is over the whole vocabulary. Source: Hinton, Vinyals and Dean, Distilling the Knowledge in a
Neural Network, 2015. As in `head_loss.py`, the backward recomputes its terms, and tensor shards exchange only a few
numbers per target.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from holmes_runtime.config.run_settings import TeacherSettings
from holmes_runtime.model.head_loss import over_shards, zip_chunks
from holmes_runtime.model.tensor_parallel import TensorParallel


class SoftTargets(NamedTuple):
    """A teacher's likeliest tokens in each position, int32 (.., top), and their logarithms, fp32 (.., top).

    They are logarithms of probabilities, up to a constant.
    """

    tokens: Tensor
    log_probabilities: Tensor


def distilled_loss(
    logits: Tensor,
    targets: Tensor,
    teacher: SoftTargets,
    settings: TeacherSettings,
    vocab_size: int,
    tp: TensorParallel,
    overwrites: bool,
) -> Tensor:
    """Return the mean loss, an fp32 scalar, of logits (batch, seq, own vocabulary).

    The arguments are as for `cross_entropy`; `teacher` is (batch, seq, top). A target below zero has no loss.
    """
    first = tp.part(vocab_size).start
    tokens, likeliest = targets.flatten(), teacher.tokens.flatten(0, 1).long() - first
    scaled = teacher.log_probabilities.flatten(0, 1) / settings.temperature
    loss: Tensor = _ChunkedDistillation.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, 1), tokens - first, tokens >= 0, likeliest, scaled.softmax(1), settings, tp, overwrites
    )
    return loss


class _ChunkedDistillation(torch.autograd.Function):
    """The loss as one function, which keeps the logits and the logarithms of two sums of exponentials per target."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        predicted: Tensor,
        likeliest: Tensor,
        teacher: Tensor,
        settings: TeacherSettings,
        tp: TensorParallel,
        overwrites: bool,
    ) -> Tensor:
        """Return a scalar. logits: (tokens, own vocabulary); targets: (tokens,) and likeliest: (tokens, top), from
        the first own entry on; predicted: booleans (tokens,); teacher: probabilities at the temperature (tokens, top).
        """
        columns = torch.cat([targets.unsqueeze(1), likeliest], 1)
        is_own = (columns >= 0) & (columns < logits.shape[1])
        columns = columns.masked_fill(~is_own, 0)
        log_sums, log_sums_t = [], []
        for (chunk,) in zip_chunks(logits):
            values = chunk.float()
            log_sums.append(values.logsumexp(1))
            log_sums_t.append((values / settings.temperature).logsumexp(1))
        picked = logits.gather(1, columns).float().where(is_own, 0.0)
        sums = torch.cat(log_sums), torch.cat(log_sums_t)
        parts = picked[:, 0], (picked[:, 1:] * teacher).sum(1) / settings.temperature
        if tp.group is not None:
            sums, parts = zip(*(over_shards(*each, tp) for each in zip(sums, parts, strict=True)), strict=True)
        ctx.save_for_backward(logits, columns, is_own, teacher, predicted, *sums)
        ctx.settings, ctx.overwrites = settings, overwrites
        entropy = -torch.special.xlogy(teacher, teacher).sum(1)
        divergence = sums[1] - parts[1] - entropy
        mixed = (1 - settings.weight) * (sums[0] - parts[0])
        mixed += settings.weight * settings.temperature**2 * divergence
        return mixed.where(predicted, 0.0).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the logits in their type: (tokens, own vocabulary)."""
        logits, columns, is_own, teacher, predicted, log_sums, log_sums_t = ctx.saved_tensors
        settings: TeacherSettings = ctx.settings
        result = logits if ctx.overwrites else torch.empty_like(logits)
        scales = gradients[0] / len(logits) * predicted
        share, soft_share = 1 - settings.weight, settings.weight * settings.temperature
        wanted = torch.cat([torch.full_like(teacher[:, :1], share), soft_share * teacher], 1).where(is_own, 0.0)
        for chunk, to, own, hits, log_sum, log_sum_t, scale in zip_chunks(
            logits, result, columns, wanted, log_sums, log_sums_t, scales
        ):
            soft = torch.sub(chunk.float() / settings.temperature, log_sum_t.unsqueeze(1)).exp_()
            gradient = torch.sub(chunk, log_sum.unsqueeze(1)).exp_().mul_(share).add_(soft, alpha=soft_share)
            for part in (slice(0, 1), slice(1, None)):  # the target may be among the teacher's: add in a fixed order
                gradient.scatter_add_(1, own[:, part], -hits[:, part])
            to.copy_(gradient.mul_(scale.unsqueeze(1)))
        return result, *[None] * 7
