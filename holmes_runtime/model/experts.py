"""A mixture of experts in place of a feed-forward network: a router chooses a few experts for each token.

As in Mixtral (Jiang et al., Mixtral of Experts, 2024) and Qwen 3, each token goes to the SwiGLU experts with the
highest probabilities. No token is dropped. Tokens are sorted by expert, so each expert multiplies all of its rows at
once, and sums are the same in every run. On GPUs in bf16 torch multiplies the rows of all experts in one operation,
elsewhere expert by expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.model.expert_parallel import ALL_EXPERTS, ExpertParallel
from holmes_runtime.model.recomputed_values import Keep
from holmes_runtime.model.tensor_parallel import TensorParallel

Product = Callable[[Tensor, Tensor], Tensor]  # of rows and a matrix, or of rows and the matrices of all experts


@dataclass(frozen=True)
class Balancing:
    """The load-balancing loss of one layer and micro-batch, and its `weight` in the loss of the micro-batch.

    `scale` returns the current factor on the gradients of all losses.
    """

    weight: float
    scale: Callable[[], float]


class ExpertMatrices(nn.Module):
    """The matrices of one kind of all experts of a layer, (experts, rows, columns)."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))


class Experts(nn.Module):
    """The router, and this tensor shard's part of the replica's experts. `keep` as in `Mlp`.

    The replicas of `ep` share the experts and exchange rows in every micro-batch.
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

    # The number of rows of an expert differs between micro-batches, and a compiler would compile for each number.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def forward(self, hidden: Tensor) -> Tensor:
        """hidden and result: (micro_batch_size, seq_length / tp, hidden_size)."""
        whole, k = self.tp.gather(hidden), self.experts_per_token
        tokens = whole.flatten(0, 1)  # (tokens, hidden_size): all tensor shards route all of them
        weights, chosen = self.route(tokens)
        order = chosen.flatten().argsort(stable=True)  # (tokens * k,), of the copies of tokens, by expert
        counts = chosen.flatten().bincount(minlength=self.router.out_features)
        # Rows are gathered from copies, not from tokens, so that the gradients of a token are added in a fixed order.
        copies = tokens.repeat_interleave(k, 0)[order]
        shares = weights.to(hidden.dtype).flatten()[order].unsqueeze(1)  # (tokens * k, 1)
        if self.ep.group is None:
            made = self._compute(copies, shares, counts)
        else:
            rows = self.ep.exchange_counts(counts)
            made = rows.to_senders(self._compute(rows.to_experts(copies), rows.to_experts(shares), rows.counts))
        return self.tp.scatter_sum(made[order.argsort()].view(-1, k, made.shape[1]).sum(1).view_as(whole))

    def _compute(self, copies: Tensor, shares: Tensor, counts: Tensor) -> Tensor:
        """Return the weighted results of `copies` (rows, hidden_size) and `shares` (rows, 1).

        Rows are sorted by expert; counts: the rows of each expert, int64 (experts,).
        """
        matrices = [each.weight for each in cast(Iterable[ExpertMatrices], self.experts.children())]
        if multiplies_in_groups(copies, matrices):
            product = partial(_grouped_product, counts=counts, ends=counts.cumsum(0).int())
            return self._weighed(product, copies, shares, *matrices)
        rows = counts.tolist()
        split = torch.split(copies, rows), torch.split(shares, rows), *(each.unbind() for each in matrices)
        return torch.cat([self._weighed(functional.linear, *each) for each in zip(*split, strict=True)])

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights, fp32, and numbers, int64, of each token's experts: (tokens, experts_per_token) each."""
        probabilities = self.router(tokens).float().softmax(-1)
        weights, chosen = probabilities.topk(self.experts_per_token)
        if self.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        if self.balancing is not None and torch.is_grad_enabled():
            loss = self.balancing.weight / self.tp.size * balancing_loss(probabilities, chosen)  # shards are summed
            weights = _WithLoss.apply(weights, loss, self.balancing.scale)  # type: ignore[no-untyped-call]
        return weights, chosen

    def _weighed(
        self, product: Product, rows: Tensor, shares: Tensor, gate: Tensor, up: Tensor, down: Tensor
    ) -> Tensor:
        """Return the weighted results (rows, hidden_size) of one expert or of all; shares: (rows, 1)."""
        made = product(rows, gate), product(rows, up)  # (rows, expert_ffn / tp) each
        weighed: Tensor = _WeighedSwiglu.apply(*made, shares)  # type: ignore[no-untyped-call]
        with self.keep(weighed, _weighed_swiglu, *made, shares):
            return product(weighed, down)


def multiplies_in_groups(rows: Tensor, matrices: Sequence[Tensor]) -> bool:
    """Return True if torch can multiply `rows` by the matrices of all experts in one operation.

    On GPUs of compute capability 9 and 10 it is one kernel, for up to 1,023 experts, which loads 16 bytes at a time. On
    other GPUs torch multiplies expert by expert, but without Python.
    """
    if rows.device.type != "cuda" or rows.dtype != torch.bfloat16:
        return False
    fits = all(
        len(each) < 1024 and all(size % 8 == 0 for size in each.shape[1:]) and each.data_ptr() % 16 == 0
        for each in matrices
    )
    return fits and _is_right(rows.device)


@cache
def _is_right(device: torch.device) -> bool:
    """Return True if the grouped product of this torch and GPU equals separate products; print a note if not.

    The check includes experts without rows, whose gradients are zero.
    """
    generator = torch.Generator(device).manual_seed(0)
    weights = torch.randn(3, 32, 64, device=device, generator=generator).bfloat16().requires_grad_()
    # A layer that is recomputed must not take these values for its own.
    with torch.enable_grad(), saved_tensors_hooks(lambda value: value, lambda value: value):
        for sizes in ([13, 0, 11], [0, 0, 0]):
            counts = torch.tensor(sizes, device=device)
            made = (torch.randn(sum(sizes), size, device=device, generator=generator) for size in (64, 32))
            rows, gradient = (each.bfloat16().requires_grad_() for each in made)
            parts = zip(torch.split(rows, sizes), weights.unbind(), strict=True)
            expected = torch.cat([functional.linear(*part) for part in parts])
            wanted = expected, *torch.autograd.grad(expected, [rows, weights], gradient)
            try:
                result = _grouped_product(rows, weights, counts, counts.cumsum(0).int())
                found = result, *torch.autograd.grad(result, [rows, weights], gradient)
            except (AttributeError, RuntimeError) as error:
                print(f"experts are multiplied one by one, as torch refuses a grouped product: {error}", flush=True)
                return False
            if not all(torch.allclose(one, other, 0.05, 0.05) for one, other in zip(found, wanted, strict=True)):
                print("experts are multiplied one by one, as torch's grouped product is wrong on this GPU", flush=True)
                return False
    return True


def _grouped_product(rows: Tensor, weights: Tensor, counts: Tensor, ends: Tensor) -> Tensor:
    """Return the products (rows, out) of each expert's rows and its matrix in `weights` (experts, out, in).

    counts: the rows of each expert, int64 (experts,); ends: the end of each expert's rows, int32 (experts,).
    """
    used: Tensor = _WithoutRows.apply(weights, counts)  # type: ignore[no-untyped-call]
    return functional.grouped_mm(rows, used.transpose(1, 2), offs=ends)


def balancing_loss(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """Return experts * sum over experts of (share of the tokens that chose it) * (its mean probability), a scalar.

    probabilities: (tokens, experts); chosen: (tokens, experts_per_token). The loss is `experts_per_token` if all
    experts are used equally, else more. Source: Fedus et al., Switch Transformers, 2021, equations 4 to 6, extended to
    several experts per token as in the transformers library.
    """
    tokens, experts = probabilities.shape
    shares = chosen.flatten().bincount(minlength=experts) / tokens
    return experts * (shares * probabilities.mean(0)).sum()


class _WithLoss(torch.autograd.Function):
    """A pass-through of `values`, whose backward also starts the backward of a loss that does not depend on them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, loss: Tensor, scale: Callable[[], float]) -> Tensor:
        """values: of any shape; loss: a scalar."""
        ctx.scale = scale
        ctx.save_for_backward(loss)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (loss,) = ctx.saved_tensors
        return gradients[0], torch.full_like(loss, ctx.scale()), None


class _WithoutRows(torch.autograd.Function):
    """A pass-through of weights, whose backward zeroes gradients of experts without rows. Kernels may not set them."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, counts: Tensor) -> Tensor:
        """weights: (experts, out, in); counts: (experts,)."""
        ctx.save_for_backward(counts)
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (counts,) = ctx.saved_tensors
        return torch.where(counts.view(-1, 1, 1) > 0, gradients[0], 0), None


class _WeighedSwiglu(torch.autograd.Function):
    """The weighted SwiGLU. It keeps only its inputs, so a row takes no more memory than in an MLP."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, shares: Tensor) -> Tensor:
        """gate, up: (rows, expert_ffn / tp); shares: (rows, 1)."""
        ctx.save_for_backward(gate, up, shares)
        return _weighed_swiglu(gate, up, shares)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gate, up, shares = ctx.saved_tensors
        gated, of_product = functional.silu(gate), gradients[0] * shares
        of_gate = torch.ops.aten.silu_backward(of_product * up, gate)
        return of_gate, of_product * gated, (gradients[0] * gated * up).sum(1, keepdim=True)


def _weighed_swiglu(gate: Tensor, up: Tensor, shares: Tensor) -> Tensor:
    return functional.silu(gate) * up * shares
