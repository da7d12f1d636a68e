"""A mixture of experts in the place of a feed-forward network: a router chooses a few experts for each token.

As in Mixtral (Jiang et al., Mixtral of Experts, 2024) and Qwen 3: the experts of highest probability, SwiGLU each. No
token is dropped. Tokens are sorted by expert, so that an expert multiplies the rows that came for it at once, and sums
are the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.model.expert_parallel import ALL_EXPERTS, ExpertParallel
from holmes_runtime.model.recomputed_values import Keep
from holmes_runtime.model.tensor_parallel import TensorParallel


@dataclass(frozen=True)
class Balancing:
    """The load-balancing loss of one layer and micro-batch, weighed by `weight` in the loss of the micro-batch.

    `scale` returns the factor on the gradients of all losses at present.
    """

    weight: float
    scale: Callable[[], float]


class ExpertMatrices(nn.Module):
    """One matrix of every expert of a layer, (experts, rows, columns)."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))


class Experts(nn.Module):
    """The router, and of the replica's experts the tensor shard's part of their width. `keep` as in `Mlp`.

    The replicas of `ep` share the experts, and meet here in every micro-batch.
    """

    def __init__(
        self,
        shape: ModelShape,
        tp: TensorParallel,
        keep: Keep,
        balancing: Balancing | None,
        ep: ExpertParallel = ALL_EXPERTS,
    ) -> None:
        super().__init__()
        assert shape.experts is not None
        assert shape.experts_per_token is not None
        h, f = shape.hidden_size, shape.expert_size
        self.tp, self.ep, self.keep, self.balancing = tp, ep, keep, balancing
        self.experts_per_token, self.normalized = shape.experts_per_token, shape.normalized_routing
        self.router = nn.Linear(h, shape.experts, bias=False)
        sizes = {"gate": (f, h), "up": (f, h), "down": (h, f)}
        self.experts = nn.ModuleDict({name: ExpertMatrices(shape.experts, *size) for name, size in sizes.items()})

    # The rows of an expert differ in number from one micro-batch to the next: a compiler would compile for each.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def forward(self, hidden: Tensor) -> Tensor:
        """hidden and result: (micro_batch_size, seq_length / tp, hidden_size)."""
        whole, k = self.tp.gather(hidden), self.experts_per_token
        tokens = whole.flatten(0, 1)  # (tokens, hidden_size): all tensor shards route all of them
        weights, chosen = self.route(tokens)
        order = chosen.flatten().argsort(stable=True)  # (tokens * k,), of the copies of tokens, by expert
        counts = chosen.flatten().bincount(minlength=self.router.out_features)
        # Copies are gathered from copies, not from tokens: the gradients of a token's are then added in one order.
        copies = tokens.repeat_interleave(k, 0)[order]
        shares = weights.to(hidden.dtype).flatten()[order].unsqueeze(1)  # (tokens * k, 1)
        if self.ep.group is None:
            made = self._compute(copies, shares, counts.tolist())
        else:
            rows = self.ep.travel(counts)
            made = rows.back(self._compute(rows.to_experts(copies), rows.to_experts(shares), rows.counts))
        return self.tp.scatter_sum(made[order.argsort()].view(-1, k, made.shape[1]).sum(1).view_as(whole))

    def _compute(self, copies: Tensor, shares: Tensor, counts: list[int]) -> Tensor:
        """Return the weighed results of `copies` (rows, hidden_size) and `shares` (rows, 1), `counts` of each expert.

        Rows are in the order of experts.
        """
        matrices = (each.weight.unbind() for each in cast(Iterable[ExpertMatrices], self.experts.children()))
        split = torch.split(copies, counts), torch.split(shares, counts)
        return torch.cat([self._expert(*each) for each in zip(*split, *matrices, strict=True)])

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights, fp32, and numbers, int64, of the experts of each of `tokens`: (tokens, experts_per_token)."""
        probabilities = self.router(tokens).float().softmax(-1)
        weights, chosen = probabilities.topk(self.experts_per_token)
        if self.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        if self.balancing is not None and torch.is_grad_enabled():
            loss = self.balancing.weight / self.tp.size * balancing_loss(probabilities, chosen)  # shards are added up
            weights = _WithLoss.apply(weights, loss, self.balancing.scale)  # type: ignore[no-untyped-call]
        return weights, chosen

    def _expert(self, rows: Tensor, shares: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        """Return the weighed results (rows, hidden_size) of one expert; shares: (rows, 1)."""
        made = functional.linear(rows, gate), functional.linear(rows, up)  # (rows, expert_ffn / tp) each
        weighed: Tensor = _WeighedSwiglu.apply(*made, shares)  # type: ignore[no-untyped-call]
        with self.keep(weighed, _weighed_swiglu, *made, shares):
            return functional.linear(weighed, down)


def balancing_loss(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """Return experts * sum over experts of (share of the tokens that chose it) * (its mean probability), a scalar.

    probabilities: (tokens, experts); chosen: (tokens, experts_per_token). As many as are chosen if all experts are used
    alike, more if not. Fedus et al., Switch Transformers, 2021, equations 4 to 6, for more than one expert a token as
    in the transformers library.
    """
    tokens, experts = probabilities.shape
    shares = chosen.flatten().bincount(minlength=experts) / tokens
    return experts * (shares * probabilities.mean(0)).sum()


class _WithLoss(torch.autograd.Function):
    """Passes `values` on; the backward adds the gradient of a loss that the values do not lead to."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, loss: Tensor, scale: Callable[[], float]) -> Tensor:
        """values: of any shape; loss: a scalar."""
        ctx.scale = scale
        ctx.save_for_backward(loss)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of values and loss."""
        (loss,) = ctx.saved_tensors
        return gradients[0], torch.full_like(loss, ctx.scale()), None


class _WeighedSwiglu(torch.autograd.Function):
    """Keeps its inputs alone: no more of a row than an MLP keeps, although the row is weighed as well."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, shares: Tensor) -> Tensor:
        """gate, up: (rows, expert_ffn / tp); shares: (rows, 1)."""
        ctx.save_for_backward(gate, up, shares)
        return _weighed_swiglu(gate, up, shares)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of all three."""
        gate, up, shares = ctx.saved_tensors
        gated, of_product = functional.silu(gate), gradients[0] * shares
        of_gate = torch.ops.aten.silu_backward(of_product * up, gate)
        return of_gate, of_product * gated, (gradients[0] * gated * up).sum(1, keepdim=True)


def _weighed_swiglu(gate: Tensor, up: Tensor, shares: Tensor) -> Tensor:
    return functional.silu(gate) * up * shares
