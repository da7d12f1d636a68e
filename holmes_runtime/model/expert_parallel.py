"""Experts shared out among replicas: tokens travel to the replica that has their expert, and the results back.

A group is neighbouring replicas, which compute a micro-batch of each at the same time; replica i has the i-th part of
the experts. Rows travel all to all, once a layer for the tokens and once for the results; the backward of either is the
other. No token is dropped.
Source: Lepikhin et al., GShard, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from holmes_runtime.comm.stopwatch import Stopwatch
from holmes_runtime.model.tensor_parallel import timed_group


@dataclass(frozen=True)
class ExpertParallel:
    """This replica's part in its group of `size`; with `group` None it has all experts.

    The group's collectives hold up the computation as tensor parallelism's do: both are lap "tp" of `stopwatch`.
    """

    group: ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    stopwatch: Stopwatch | None = None

    def part(self, experts: int) -> range:
        """Return the numbers of this replica's experts."""
        return range(experts * self.rank // self.size, experts * (self.rank + 1) // self.size)

    def travel(self, counts: Tensor) -> ExpertRows:
        """Send `counts`, int64 (experts,): the rows of this replica for each expert. Return how all rows travel."""
        incoming = torch.empty_like(counts)  # (replicas * own experts,), by the replica that sends them
        with timed_group(self) as group:
            dist.all_to_all_single(incoming, counts, group=group)
        outgoing, came = counts.view(self.size, -1), incoming.view(self.size, -1)
        sizes = torch.cat([outgoing.sum(1), came.sum(1)]).tolist()  # the host waits for the device once
        sent, received = sizes[: self.size], sizes[self.size :]
        experts = torch.arange(came.shape[1], device=counts.device).repeat(self.size)
        order = experts.repeat_interleave(incoming, output_size=sum(received)).argsort(stable=True)
        return ExpertRows(self, sent, received, order, came.sum(0))


ALL_EXPERTS = ExpertParallel()


@dataclass(frozen=True)
class ExpertRows:
    """The rows of one layer and micro-batch that travel: `sent` to each replica and `received` from each.

    `order` sorts the rows that came by expert, then by replica and token; `counts` are the rows of each own expert,
    int64 (own experts,).
    """

    ep: ExpertParallel
    sent: list[int]
    received: list[int]
    order: Tensor
    counts: Tensor

    def to_experts(self, rows: Tensor) -> Tensor:
        """Send `rows` (sum of sent, ..), sorted by expert; return those that came, sorted by expert."""
        came: Tensor = _AllToAll.apply(rows, self.ep, self.sent, self.received)  # type: ignore[no-untyped-call]
        return came[self.order]

    def back(self, made: Tensor) -> Tensor:
        """Return the results (sum of sent, ..) of the rows sent; made: (sum of received, ..), of the rows that came."""
        rows = made[self.order.argsort()]
        results: Tensor = _AllToAll.apply(rows, self.ep, self.received, self.sent)  # type: ignore[no-untyped-call]
        return results


class _AllToAll(torch.autograd.Function):
    """Sends consecutive rows to each replica of a group; in the backward their gradients come back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ep: ExpertParallel, sent: list[int], received: list[int]) -> Tensor:
        """rows: (sum of sent, ..); result: (sum of received, ..)."""
        ctx.ep, ctx.sent, ctx.received = ep, sent, received
        return _all_to_all(rows, ep, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of the rows sent."""
        return _all_to_all(gradients[0], ctx.ep, ctx.received, ctx.sent), None, None, None


def _all_to_all(rows: Tensor, ep: ExpertParallel, sent: list[int], received: list[int]) -> Tensor:
    came = rows.new_empty(sum(received), *rows.shape[1:])
    with timed_group(ep) as group:
        dist.all_to_all_single(came, rows.contiguous(), received, sent, group=group)
    return came
