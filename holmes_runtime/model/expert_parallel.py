"""Experts shared by replicas: tokens are sent to the replica that has their expert, and results are sent back.

A group has neighbouring replicas, which compute their micro-batches at the same time. Replica i has the i-th part of
the experts. Each layer has one all-to-all for tokens and one for results, and each is the backward of the other. No
token is dropped. Source: Lepikhin et al., GShard, 2021.
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
    """This replica's place in its group of `size`. Without a `group` it has all experts.

    The group's collectives block computation, like a tensor group's, so both count as lap "tp" of `stopwatch`.
    """

    group: ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    stopwatch: Stopwatch | None = None

    def part(self, experts: int) -> range:
        """Return the numbers of this replica's experts."""
        return range(experts * self.rank // self.size, experts * (self.rank + 1) // self.size)

    def exchange_counts(self, counts: Tensor) -> ExpertRows:
        """Exchange the numbers of rows. counts: this replica's rows for each expert, int64 (experts,)."""
        incoming = torch.empty_like(counts)  # (replicas * own experts,), by sending replica
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
    """The exchange of rows of one layer and micro-batch: numbers `sent` to and `received` from each replica.

    `order` sorts received rows by expert, then by replica and token. `counts` are the rows of each own expert, int64
    (own experts,).
    """

    ep: ExpertParallel
    sent: list[int]
    received: list[int]
    order: Tensor
    counts: Tensor

    def to_experts(self, rows: Tensor) -> Tensor:
        """Send `rows` (sum of sent, ..), sorted by expert. Return the received ones, sorted by expert."""
        came: Tensor = _AllToAll.apply(rows, self.ep, self.sent, self.received)  # type: ignore[no-untyped-call]
        return came[self.order]

    def to_senders(self, made: Tensor) -> Tensor:
        """Send back `made`, the results of received rows. Return the results of the rows sent (sum of sent, ..)."""
        rows = made[self.order.argsort()]
        results: Tensor = _AllToAll.apply(rows, self.ep, self.received, self.sent)  # type: ignore[no-untyped-call]
        return results


class _AllToAll(torch.autograd.Function):
    """The all-to-all of consecutive rows in a group. Its backward sends the gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ep: ExpertParallel, sent: list[int], received: list[int]) -> Tensor:
        """rows: (sum of sent, ..); result: (sum of received, ..)."""
        ctx.ep, ctx.sent, ctx.received = ep, sent, received
        return _all_to_all(rows, ep, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(gradients[0], ctx.ep, ctx.received, ctx.sent), None, None, None


def _all_to_all(rows: Tensor, ep: ExpertParallel, sent: list[int], received: list[int]) -> Tensor:
    came = rows.new_empty(sum(received), *rows.shape[1:])
    with timed_group(ep) as group:
        dist.all_to_all_single(came, rows.contiguous(), received, sent, group=group)
    return came
