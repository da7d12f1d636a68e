"""Runs one step of a stage on torch's schedule runtime. The only file that uses torch's private pipelining names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from holmes_runtime.comm import RankGroups
from holmes_runtime.run_config import RunConfig
from holmes_runtime.schedule import Action, ActionKind, one_f_one_b

LossFunction = Callable[[Tensor, Tensor], Tensor]

TORCH_KINDS = {ActionKind.FORWARD: _ComputationType.FORWARD, ActionKind.BACKWARD: _ComputationType.FULL_BACKWARD}


class Pipeline:
    """One rank's part of its replica's pipeline."""

    def __init__(
        self,
        config: RunConfig,
        rank: int,
        module: nn.Module,
        loss_function: LossFunction,
        groups: RankGroups,
        device: torch.device,
    ) -> None:
        placed = config.placement(rank)
        self.is_first = placed.pp_rank == 0
        self.is_last = placed.pp_rank == config.pp - 1
        self._stage_ranks = config.stage_ranks(placed.dp_rank)
        self._pp_rank = placed.pp_rank
        self._groups = groups
        self._device = device
        self._module = module
        self._loss_function = loss_function
        self._num_microbatches = config.num_microbatches
        self._stage: _EdgeStage | None = None
        self._runtime: _ListedSchedule | None = None
        if config.pp > 1:
            self._stage = _EdgeStage(module, config, placed.pp_rank, self._stage_ranks, groups, device)
            self._runtime = _ListedSchedule(self._stage, config.num_microbatches, loss_function)

    def step(self, tokens: Tensor | None) -> list[Tensor]:
        """Forward and backward of every micro-batch, adding to `.grad`; the losses, scalars, on the last stage.

        tokens: int64 (samples_per_replica, seq_length + 1), needed on the first and the last stage. Other stages
        return an empty list. Gradients are sums over micro-batches, not means.
        """
        if self._runtime is None or self._stage is None:
            assert tokens is not None
            return self._step_alone(tokens)
        losses: list[Tensor] = []
        inputs = (tokens[:, :-1].contiguous(),) if self.is_first and tokens is not None else ()
        targets = tokens[:, 1:].contiguous() if self.is_last and tokens is not None else None
        self._runtime.step(*inputs, target=targets, losses=losses, return_outputs=False)
        self._stage.finish_sends()
        return [loss.detach() for loss in losses]

    def _step_alone(self, tokens: Tensor) -> list[Tensor]:
        losses = []
        for microbatch in tokens.chunk(self._num_microbatches):
            loss = self._loss_function(self._module(microbatch[:, :-1]), microbatch[:, 1:])
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return losses

    def sum_over_stages(self, value: Tensor) -> float:
        """The sum of a float64 scalar over the stages of this replica, equal on all of them.

        The sum travels down the pipeline and its result back up, on the groups of the edges: 2 (p - 1) hops, of which
        only those between clusters are slow. A ring over all ranks would take 2 (n - 1) hops, each as slow as the
        slowest.
        """
        total = value.to(self._device, torch.float64).reshape(1)
        received = torch.empty_like(total)
        if not self.is_first:
            dist.recv(received, src=self._stage_ranks[self._pp_rank - 1], group=self._groups.forward_in)
            total = received + total
        if not self.is_last:
            after = self._stage_ranks[self._pp_rank + 1]
            dist.send(total, dst=after, group=self._groups.forward_out)
            dist.recv(total, src=after, group=self._groups.backward_in)
        if not self.is_first:
            dist.send(total, dst=self._stage_ranks[self._pp_rank - 1], group=self._groups.backward_out)
        return total.item()


class _EdgeStage(PipelineStage):
    """A stage whose operations with each neighbour use the group of that edge and direction.

    Torch expects one group whose rank i holds stage i. Here the stage index itself is the rank in the pipeline and
    `_resolve_peer_global_rank` looks up the plan, so ranks may be numbered in any order and no group but those of the
    edges exists. Torch builds operations on `self.group`: each override points it at the right group first. Shapes
    are given up front, so nothing is inferred over the network.

    Torch keeps a receive buffer and a sent tensor for every micro-batch of a step. Here both live only as long as
    1F1B has the micro-batch in flight, so memory does not grow with the number of micro-batches.
    """

    def __init__(
        self,
        module: nn.Module,
        config: RunConfig,
        pp_rank: int,
        stage_ranks: tuple[int, ...],
        groups: RankGroups,
        device: torch.device,
    ) -> None:
        batch, seq = config.micro_batch_size, config.model.seq_length
        # hidden: (micro_batch_size, seq_length, hidden_size), what crosses every edge
        hidden = torch.empty(batch, seq, config.model.hidden_size, device="meta", requires_grad=True)
        tokens = torch.empty(batch, seq, dtype=torch.int64, device="meta")
        super().__init__(
            module,
            pp_rank,
            config.pp,
            device,
            input_args=tokens if pp_rank == 0 else hidden,
            output_args=hidden,  # what the last stage makes is sent to nobody, and its shape is not looked at
            group=groups.forward_in or groups.forward_out,
        )
        self.group_rank, self.group_size = pp_rank, config.pp
        self._stage_ranks, self._groups = stage_ranks, groups
        self._hidden_shape = hidden.shape
        self._forward_sends: dict[int, list[dist.Work]] = {}
        self._backward_sends: dict[int, list[dist.Work]] = {}

    def _resolve_peer_global_rank(self, stage_idx: int) -> int:
        """The global rank that holds stage `stage_idx` of this replica."""
        return self._stage_ranks[stage_idx]

    def _warmup_forward_vote(self, has_backward: bool, received_acc: Tensor | None = None) -> Tensor:
        """Torch's vote on whether all shapes are known: yes on every stage, without asking the others."""
        del has_backward, received_acc
        return torch.ones(1, dtype=torch.int32)

    def _warmup_backward_result(self, received_result: Tensor | None = None) -> Tensor:
        """The result of that vote."""
        del received_result
        return torch.ones(1, dtype=torch.int32)

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        """Torch's set-up of all receives, without the buffers it makes for them."""
        super()._setup_backward_recv_info(num_microbatches)
        for microbatch in range(num_microbatches):
            self._drop_buffers(microbatch)

    def _make_buffers(self, receives: tuple[Any, ...]) -> None:
        for receive in receives:
            receive.buffer = torch.empty(self._hidden_shape, device=self.device)

    def _drop_buffers(self, microbatch: int) -> None:
        for receive in (*self.args_recv_info[microbatch], *self.grad_recv_info[microbatch]):
            receive.buffer = None

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Receives of activations from the stage before."""
        self.group = self._groups.forward_in
        self._make_buffers(self.args_recv_info[fwd_chunk_id])
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Starts sending activations to the stage after; leaves torch nothing to do."""
        self.group = self._groups.forward_out
        self._forward_sends[fwd_chunk_id] = _start(super().get_fwd_send_ops(fwd_chunk_id))
        return []

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Receives of gradients from the stage after."""
        self.group = self._groups.backward_in
        self._make_buffers(self.grad_recv_info[bwd_chunk_id])
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Starts sending gradients to the stage before; leaves torch nothing to do."""
        self.group = self._groups.backward_out
        self._backward_sends[bwd_chunk_id] = _start(super().get_bwd_send_ops(bwd_chunk_id))
        return []

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Runs the forward of one micro-batch, and lets go of a gradient that must have arrived.

        The stage before runs forward k only after backward k - w, w its warm-up, for which it had our gradient.
        """
        warmup_before = self.num_stages - self.stage_index + 1
        _wait(self._backward_sends.pop(fwd_chunk_id - warmup_before, []))
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        """Runs the backward of one micro-batch and lets go of its buffers.

        Its gradient has come back, so the activations sent for it have arrived. Torch keeps the losses to the end of
        the step; detached, they do not keep the graph and with it the received activations.
        """
        _wait(self._forward_sends.pop(bwd_chunk_id, []))
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        self._drop_buffers(bwd_chunk_id)
        if loss is not None:
            loss.detach_()

    def finish_sends(self) -> None:
        """Waits for what is still on its way at the end of a step."""
        for microbatch in list(self._backward_sends):
            _wait(self._backward_sends.pop(microbatch))


def _start(operations: list[dist.P2POp]) -> list[dist.Work]:
    """Starts each of the sends `operations`."""
    started = [dist.isend(send.tensor, send.peer, send.group) for send in operations]
    return [work for work in started if work is not None]


def _wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()


class _ListedSchedule(_PipelineScheduleRuntime):
    """Torch's schedule runtime executing the action lists of `schedule.py`.

    It posts receives early and never waits for a send, so sends overlap compute.
    """

    def __init__(self, stage: _EdgeStage, num_microbatches: int, loss_function: LossFunction) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            [stage], num_microbatches, loss_fn=loss_function, scale_grads=False
        )
        listed = one_f_one_b(stage.num_stages, num_microbatches)
        order: dict[int, Any] = {index: [_to_torch(action) for action in listed[index]] for index in listed}
        self._prepare_schedule_with_comms(order)


def _to_torch(action: Action) -> _Action:
    return _Action(action.stage, TORCH_KINDS[action.kind], action.microbatch)
