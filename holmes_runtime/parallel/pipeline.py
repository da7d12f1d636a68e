"""Runs one step of a rank's stages on torch's schedule runtime. The only file that uses torch's private pipelining
names; tests/runtime/test_torch_contract.py says what is relied on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.stopwatch import Stopwatch
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.schedule import Action, ActionKind, Schedule, gradients_arrived
from holmes_runtime.model.build_stage import LossFunction, StageModule
from holmes_runtime.model.decoder import DTYPES
from holmes_runtime.parallel.loss_scale import LossScale

TORCH_KINDS = {
    ActionKind.FORWARD: _ComputationType.FORWARD,
    ActionKind.BACKWARD: _ComputationType.FULL_BACKWARD,
    ActionKind.BACKWARD_INPUT: _ComputationType.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: _ComputationType.BACKWARD_WEIGHT,
}
GradientAdded = Callable[[Tensor], None]
Sending = tuple[dist.Work | None, Tensor]
"""A send under way and what it sends, which must not be freed before."""


class Pipeline:
    """One rank's part of its replica's pipeline: its stages, first layers first, and the edges to its neighbours."""

    def __init__(
        self,
        config: RunConfig,
        me: Rank,
        stages: Sequence[StageModule],
        loss_function: LossFunction,
        groups: RankGroups,
        device: torch.device,
        gradient_added: GradientAdded,
        loss_scale: LossScale | None,
        stopwatch: Stopwatch,
    ) -> None:
        """`gradient_added` is called for every parameter whose `.grad` grew without autograd's hooks.

        With a `loss_scale` gradients are those of the scaled loss; losses are returned as they are.
        """
        self.is_first = me.pp_rank == 0
        self.is_last = me.pp_rank == config.pp - 1
        self._stopwatch = stopwatch
        self._ranks = config.grid.pipeline(me.dp_rank, me.tp_rank)
        self._me, self._groups, self._device = me, groups, device
        self._modules = [stage.module for stage in stages]
        self._loss_function, self._loss_scale = loss_function, loss_scale
        self._num_microbatches = config.microbatches[me.dp_rank]
        self._hidden = torch.empty(config.message_shape, dtype=DTYPES[config.value_type], device="meta")
        self._stages: list[_EdgeStage] = []
        if config.pp > 1:
            schedule = config.schedule_of(me.dp_rank)
            arrived = gradients_arrived(schedule, me.pp_rank)
            for stage in stages:
                edge_stage = _EdgeStage(stage, config, self._ranks, groups, device, self._hidden)
                edge_stage.connect(self._stages, arrived, gradient_added, stopwatch)
                self._stages.append(edge_stage)
            self._runtime = _ListedSchedule(self._stages, schedule, self._num_microbatches, self._scaled_loss)

    def step(self, tokens: Tensor | None) -> list[Tensor]:
        """Forward and backward of every micro-batch, adding to `.grad`; the losses, scalars, on the last rank.

        tokens: int64 (samples of the replica, seq_length + 1), needed on the first and the last rank. Other ranks
        return an empty list. Gradients are sums over micro-batches, not means.
        """
        scale = self._loss_scale.scale if self._loss_scale else 1.0
        return [loss.detach() / scale for loss in self._scaled_step(tokens)]

    def _scaled_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss whose gradients 16-bit floats can hold."""
        loss = self._loss_function(outputs, targets)
        return loss if self._loss_scale is None else loss * self._loss_scale.scale

    def _scaled_step(self, tokens: Tensor | None) -> list[Tensor]:
        losses: list[Tensor] = []
        if not self._stages:
            assert tokens is not None
            for microbatch in tokens.chunk(self._num_microbatches):
                with self._stopwatch.lap("forward"):
                    losses.append(self._scaled_loss(self._modules[0](microbatch[:, :-1]), microbatch[:, 1:]))
                with self._stopwatch.lap("backward"):
                    losses[-1].backward()  # type: ignore[no-untyped-call]
                losses[-1].detach_()
            return losses
        inputs = (tokens[:, :-1].contiguous(),) if self.is_first and tokens is not None else ()
        targets = tokens[:, 1:].contiguous() if self.is_last and tokens is not None else None
        self._runtime.step(*inputs, target=targets, losses=losses, return_outputs=False)
        for stage in self._stages:
            stage.finish_sends()
        return losses

    @torch.no_grad()
    def evaluate(self, tokens: Tensor | None, num_microbatches: int) -> list[Tensor]:
        """The losses of `num_microbatches` micro-batches, scalars, on the last rank; no gradients.

        tokens: int64 (num_microbatches * micro_batch_size, seq_length + 1), as for `step`.
        """
        losses: list[Tensor] = []
        sends: list[Sending] = []
        microbatches = [None] * num_microbatches if tokens is None else tokens.chunk(num_microbatches)
        for chunk, module in enumerate(self._modules):
            is_first = self.is_first and chunk == 0
            is_last = self.is_last and chunk == len(self._modules) - 1
            for microbatch in microbatches:
                if is_first:
                    assert microbatch is not None
                    hidden = module(microbatch[:, :-1])
                else:
                    received = torch.empty_like(self._hidden, device=self._device)
                    dist.recv(received, src=self._neighbour(-1), group=self._groups.forward_in)
                    hidden = module(received)
                if is_last:
                    assert microbatch is not None
                    losses.append(self._loss_function(hidden, microbatch[:, 1:]))
                else:
                    sends.append(_send(hidden, self._neighbour(1), self._groups.forward_out))
        _wait(sends)
        return losses

    def _neighbour(self, distance: int) -> int:
        """Global rank of the rank `distance` further in the pipeline, which closes to a ring."""
        return self._ranks[(self._me.pp_rank + distance) % len(self._ranks)]

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """The sum of `values`, float64 (n,), over the pipeline ranks of this replica, equal on all of them.

        The sum travels down the pipeline and its result back up, on the groups of the edges: 2 (p - 1) hops, of which
        only those between clusters are slow. A ring over all ranks would take 2 (n - 1) hops, each as slow as the
        slowest.
        """
        total = values.clone()
        if not self.is_first:
            received = torch.empty_like(total)
            dist.recv(received, src=self._neighbour(-1), group=self._groups.forward_in)
            total += received
        if not self.is_last:
            dist.send(total, dst=self._neighbour(1), group=self._groups.forward_out)
            dist.recv(total, src=self._neighbour(1), group=self._groups.backward_in)
        if not self.is_first:
            dist.send(total, dst=self._neighbour(-1), group=self._groups.backward_out)
        return total


class _EdgeStage(PipelineStage):
    """A stage whose operations with each neighbour use the group of that edge and direction.

    Torch expects one group whose rank i holds stage i. Here the pipeline rank itself is the group's rank and
    `_resolve_peer_global_rank` looks up the plan, so ranks may be numbered in any order and no group but those of the
    edges exists. Shapes are given up front, so nothing is inferred over the network. Operations are started here, each
    on its group, and torch gets none to start.

    Torch keeps a receive buffer and a sent tensor for every micro-batch of a step. Here both live only as long as
    the schedule has the micro-batch in flight, so memory does not grow with the number of micro-batches.
    """

    def __init__(
        self,
        built: StageModule,
        config: RunConfig,
        ranks: tuple[int, ...],
        groups: RankGroups,
        device: torch.device,
        hidden: Tensor,
    ) -> None:
        """hidden: (micro_batch_size, seq_length / tp, hidden_size) on the meta device, what crosses every edge."""
        tokens = torch.empty(config.micro_batch_size, config.model.seq_length, dtype=torch.int64, device="meta")
        crossing = hidden.detach().requires_grad_()
        index = built.stage.index
        super().__init__(
            built.module,
            index,
            len(config.stages),
            device,
            input_args=tokens if index == 0 else crossing,
            output_args=crossing,  # what the last stage makes is sent to nobody, and its shape is not looked at
            group=groups.forward_in or groups.forward_out,
        )
        self.group_rank, self.group_size = index % config.pp, config.pp
        self._ranks, self._groups, self._hidden = ranks, groups, hidden
        self._receives: dict[tuple[ActionKind, int], dist.Work | None] = {}
        self._activation_sends: dict[int, list[Sending]] = {}
        self._gradient_sends: dict[int, list[Sending]] = {}

    def connect(
        self,
        others: list[_EdgeStage],
        arrived: Mapping[Action, list[Action]],
        gradient_added: GradientAdded,
        stopwatch: Stopwatch,
    ) -> None:
        """Tells what is shared by the rank's stages; `others` is filled while they are made."""
        self._rank_stages, self._arrived, self._gradient_added = others, arrived, gradient_added
        self._stopwatch = stopwatch

    def _resolve_peer_global_rank(self, stage_idx: int) -> int:
        """The global rank that holds stage `stage_idx` of this replica."""
        return self._ranks[stage_idx % len(self._ranks)]

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

    def _drop_buffers(self, microbatch: int) -> None:
        for receive in (*self.args_recv_info[microbatch], *self.grad_recv_info[microbatch]):
            receive.buffer = None

    def _receive(self, kind: ActionKind, microbatch: int, source: int, group: ProcessGroup | None) -> None:
        """Starts to receive what `kind` of `microbatch` waits for."""
        info = self.args_recv_info if kind is ActionKind.FORWARD else self.grad_recv_info
        buffer = torch.empty_like(self._hidden, device=self.device)
        info[microbatch][0].buffer = buffer
        self._receives[kind, microbatch] = dist.irecv(buffer, self._resolve_peer_global_rank(source), group)

    def _await(self, kind: ActionKind, microbatch: int, axis: str) -> None:
        receive = self._receives.pop((kind, microbatch), None)
        if receive is not None:
            with self._stopwatch.lap(axis):
                receive.wait()

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Starts to receive activations from the stage before."""
        self._receive(ActionKind.FORWARD, fwd_chunk_id, self.stage_index - 1, self._groups.forward_in)
        return []

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Starts to receive gradients from the stage after."""
        self._receive(ActionKind.BACKWARD, bwd_chunk_id, self.stage_index + 1, self._groups.backward_in)
        return []

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Starts to send activations to the stage after."""
        self.group = self._groups.forward_out  # torch checks the peer against it
        sends = super().get_fwd_send_ops(fwd_chunk_id)
        self._activation_sends[fwd_chunk_id] = [
            _send(send.tensor, send.peer, self._groups.forward_out) for send in sends
        ]
        return []

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Starts to send gradients to the stage before."""
        self.group = self._groups.backward_out
        sends = super().get_bwd_send_ops(bwd_chunk_id)
        self._gradient_sends[bwd_chunk_id] = [
            _send(send.tensor, send.peer, self._groups.backward_out) for send in sends
        ]
        return []

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Runs the forward of one micro-batch, and lets go of gradients that must have arrived."""
        self._await(ActionKind.FORWARD, fwd_chunk_id, "pp_forward")
        for backward in self._arrived.get(Action(self.stage_index, ActionKind.FORWARD, fwd_chunk_id), []):
            for stage in self._rank_stages:
                if stage.stage_index == backward.stage:
                    _wait(stage._gradient_sends.pop(backward.microbatch, []))
        with self._stopwatch.lap("forward"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Tensor:
        """The stage's output, but never a view: torch detaches it in place after the input half of a backward."""
        output: Tensor = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        return output.clone() if output._is_view() else output

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        """Runs the backward of one micro-batch, or its input half, and lets go of its buffers.

        Its gradient has come back, so the activations sent for it have arrived. Torch keeps the losses to the end of
        the step; detached, they do not keep the graph and with it the received activations.
        """
        self._await(ActionKind.BACKWARD, bwd_chunk_id, "pp_backward")
        _wait(self._activation_sends.pop(bwd_chunk_id, []))
        with self._stopwatch.lap("backward"):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        self._drop_buffers(bwd_chunk_id)
        if loss is not None and full_backward:
            loss.detach_()

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        """Runs a backward or a half of one; the weight half by groups of parameters, last layers first.

        There torch adds to `.grad` itself and no hook fires. Each group holds the AccumulateGrad nodes of the
        parameters it makes the gradients of, and is emptied by the call.
        """
        if backward_type != "weight":
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        for group in reversed(bwd_kwargs["param_groups"]):
            parameters = [node.variable for node in group["params"]]
            with self._stopwatch.lap("backward"):
                super().backward_maybe_with_nosync("weight", {**bwd_kwargs, "param_groups": [group]}, last_backward)
            for parameter in parameters:
                self._gradient_added(parameter)
        return (), None

    def finish_sends(self) -> None:
        """Waits for what is still on its way at the end of a step."""
        for axis, sends in (("pp_forward", self._activation_sends), ("pp_backward", self._gradient_sends)):
            with self._stopwatch.lap(axis):
                for microbatch in list(sends):
                    _wait(sends.pop(microbatch))


def _send(tensor: Tensor, peer: int, group: ProcessGroup | None) -> Sending:
    sent = tensor.contiguous()
    return dist.isend(sent, peer, group), sent


def _wait(sends: Iterable[Sending]) -> None:
    for work, _ in sends:
        if work is not None:
            work.wait()


class _ListedSchedule(_PipelineScheduleRuntime):
    """Torch's schedule runtime executing the action lists of `schedule.py`.

    It posts receives early and never waits for a send, so sends overlap compute.
    """

    def __init__(
        self, stages: list[_EdgeStage], schedule: Schedule, num_microbatches: int, loss_function: LossFunction
    ) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            stages, num_microbatches, loss_fn=loss_function, scale_grads=False
        )
        order: dict[int, Any] = {rank: [_to_torch(action) for action in schedule[rank]] for rank in schedule}
        self._prepare_schedule_with_comms(order)


def _to_torch(action: Action) -> _Action:
    return _Action(action.stage, TORCH_KINDS[action.kind], action.microbatch)
