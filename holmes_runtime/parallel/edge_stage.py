"""A rank's stages on torch's schedule runtime: every edge of the pipeline on its own group, in bounded memory.

The only file that uses torch's private pipelining names; tests/runtime/test_torch_contract.py lists those it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import stage_backward_weight
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.stopwatch import Stopwatch, named_range
from holmes_runtime.comm.streams import Transfer
from holmes_runtime.comm.wire import Direction
from holmes_runtime.config.rank_metrics import action_name
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.schedule import Action, ActionKind, Schedule
from holmes_runtime.model.build_stage import LossFunction, StageModule
from holmes_runtime.model.tensor_parallel import backward_half
from holmes_runtime.parallel.edge_messages import EdgeMessages, Receiving, wait_for

TORCH_KINDS = {
    ActionKind.FORWARD: _ComputationType.FORWARD,
    ActionKind.BACKWARD: _ComputationType.FULL_BACKWARD,
    ActionKind.BACKWARD_INPUT: _ComputationType.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: _ComputationType.BACKWARD_WEIGHT,
}
GradientAdded = Callable[[Tensor], None]


class EdgeStage(PipelineStage):
    """A stage whose operations with each neighbour use the group of that edge and direction.

    Torch expects one group whose rank i holds stage i. Here the pipeline rank itself is the group's rank and
    `_resolve_peer_global_rank` looks up the plan, so ranks may be numbered in any order and only the groups of the
    edges exist. Shapes are given up front, so nothing is inferred over the network. Operations are started here, each
    on its group, and torch gets none to start.

    Torch keeps a receive buffer and a sent tensor for every micro-batch of a step. Here both live only as long as
    the schedule has the micro-batch in flight, so memory does not grow with the number of micro-batches. Until a
    message is needed it stays packed.
    """

    _beside_input: tuple[Tensor, ...] = ()  # of the micro-batch whose forward runs

    def __init__(
        self,
        built: StageModule,
        config: RunConfig,
        ranks: tuple[int, ...],
        groups: RankGroups,
        device: torch.device,
        hidden: Tensor,
    ) -> None:
        """hidden: (micro_batch_size, seq_length / tp, hidden_size) on the meta device, the message of every edge."""
        tokens = torch.empty(config.micro_batch_size, config.model.seq_length, dtype=torch.int64, device="meta")
        crossing = hidden.detach().requires_grad_()
        index = built.stage.index
        super().__init__(
            built.module,
            index,
            len(config.stages),
            device,
            input_args=tokens if index == 0 else crossing,
            output_args=crossing,  # the last stage's output is not sent, and its shape is not used
            group=groups.forward_in or groups.forward_out,
        )
        self.group_rank, self.group_size = index % config.pp, config.pp
        self._ranks, self._groups = ranks, groups
        self._receives: dict[tuple[Direction, int], Receiving] = {}
        self._activation_sends: dict[int, list[Transfer]] = {}
        self._gradient_sends: dict[int, list[Transfer]] = {}
        self.beside_inputs: list[tuple[Tensor, ...]] = []  # further arguments of the module, by micro-batch
        self.extremes: list[Tensor] = []  # least and greatest output of each micro-batch's forward, if it is sent on

    def connect(
        self,
        others: list[EdgeStage],
        messages: EdgeMessages,
        gradient_added: GradientAdded,
        stopwatch: Stopwatch,
    ) -> None:
        """Set the objects that the rank's stages share; `others` is filled while they are made."""
        self._rank_stages, self._messages, self._gradient_added = others, messages, gradient_added
        self._stopwatch = stopwatch

    def follow(self, arrived: Mapping[Action, list[Action]]) -> None:
        """Use `arrived` from the next step on: the gradients that must have been received by each forward."""
        self._arrived = arrived

    def _resolve_peer_global_rank(self, stage_idx: int) -> int:
        """Return the global rank that holds stage `stage_idx` of this replica."""
        return self._ranks[stage_idx % len(self._ranks)]

    def _warmup_forward_vote(self, has_backward: bool, received_acc: Tensor | None = None) -> Tensor:
        """Vote for torch that all shapes are known: yes on every stage, without asking the others."""
        del has_backward, received_acc
        return torch.ones(1, dtype=torch.int32)

    def _warmup_backward_result(self, received_result: Tensor | None = None) -> Tensor:
        """Return the result of that vote."""
        del received_result
        return torch.ones(1, dtype=torch.int32)

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        """Set up all receives as torch does, without the buffers it makes for them."""
        super()._setup_backward_recv_info(num_microbatches)
        for microbatch in range(num_microbatches):
            self._drop_buffers(microbatch)

    def _drop_buffers(self, microbatch: int) -> None:
        for receive in (*self.args_recv_info[microbatch], *self.grad_recv_info[microbatch]):
            receive.buffer = None

    def _await(self, direction: Direction, microbatch: int, axis: str) -> None:
        """Put the message received for `microbatch` where torch looks for it."""
        receive = self._receives.pop((direction, microbatch), None)
        if receive is not None:
            with self._stopwatch.lap(axis), named_range(f"receive {direction.name.lower()} {microbatch}"):
                receive.wait()
            info = self.args_recv_info if direction is Direction.FORWARD else self.grad_recv_info
            info[microbatch][0].buffer = receive.values()

    def _range(self, kind: ActionKind, microbatch: int) -> AbstractContextManager[None]:
        return named_range(action_name(kind.value, microbatch, self.stage_index))

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Run the weight half of one micro-batch's backward."""
        with self._range(ActionKind.BACKWARD_WEIGHT, bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Start to receive activations from the stage before."""
        self._receives[Direction.FORWARD, fwd_chunk_id] = self._messages.receive(Direction.FORWARD)
        return []

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Start to receive gradients from the stage after."""
        self._receives[Direction.BACKWARD, bwd_chunk_id] = self._messages.receive(Direction.BACKWARD)
        return []

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Start to send activations to the stage after."""
        self.group = self._groups.forward_out  # torch checks the peer against it
        sends = super().get_fwd_send_ops(fwd_chunk_id)
        self._activation_sends[fwd_chunk_id] = [
            self._messages.send(Direction.FORWARD, self.stage_index, fwd_chunk_id, each.tensor) for each in sends
        ]
        return []

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Start to send gradients to the stage before."""
        self.group = self._groups.backward_out
        sends = super().get_bwd_send_ops(bwd_chunk_id)
        self._gradient_sends[bwd_chunk_id] = [
            self._messages.send(Direction.BACKWARD, self.stage_index, bwd_chunk_id, each.tensor) for each in sends
        ]
        return []

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of one micro-batch, and release gradients that must have arrived."""
        self._await(Direction.FORWARD, fwd_chunk_id, "pp_forward")
        for backward in self._arrived.get(Action(self.stage_index, ActionKind.FORWARD, fwd_chunk_id), []):
            for stage in self._rank_stages:
                if stage.stage_index == backward.stage:
                    wait_for(stage._gradient_sends.pop(backward.microbatch, []))
        self._beside_input = self.beside_inputs[fwd_chunk_id]
        with self._stopwatch.lap("forward"), self._range(ActionKind.FORWARD, fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the stage's output, but never a view: torch detaches it in place after the input half of a backward.

        The module's further arguments bypass torch, which would take them for inputs to be differentiated.
        """
        args = (*args, *self._beside_input)
        output: Tensor = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        if not self.is_last:
            self.extremes.append(torch.stack(output.detach().aminmax()))
        return output.clone() if output._is_view() else output

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        """Run the backward of one micro-batch, or its input half, and release its buffers.

        Its gradient has come back, so the activations sent for it have arrived. Torch keeps the losses to the end of
        the step; detached, they do not keep the graph and with it the received activations.
        """
        self._await(Direction.BACKWARD, bwd_chunk_id, "pp_backward")
        wait_for(self._activation_sends.pop(bwd_chunk_id, []))
        kind = ActionKind.BACKWARD if full_backward else ActionKind.BACKWARD_INPUT
        with self._stopwatch.lap("backward"), self._range(kind, bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        self._drop_buffers(bwd_chunk_id)
        if loss is not None and full_backward:
            loss.detach_()

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        """Run a backward or a half of one; the weight half by groups of parameters, last layers first.

        There torch adds to `.grad` itself and no hook fires. Each group holds the AccumulateGrad nodes of its
        parameters, and the call empties it. Torch looks at every parameter it is given, so it gets the group's only.
        The first stage runs a whole backward as its weight half.
        """
        if backward_type != "weight":
            with self._stopwatch.lap("backward"), backward_half(backward_type):
                return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        for group in reversed(bwd_kwargs["param_groups"]):
            parameters = [node.variable for node in group["params"]]
            with self._stopwatch.lap("backward"), backward_half("weight"):
                stage_backward_weight(iter(parameters), [group])
            for parameter in parameters:
                self._gradient_added(parameter)
        return (), None

    def finish_sends(self) -> None:
        """Wait for the sends still under way at the end of a step."""
        for axis, sends in (("pp_forward", self._activation_sends), ("pp_backward", self._gradient_sends)):
            with self._stopwatch.lap(axis):
                for microbatch in list(sends):
                    wait_for(sends.pop(microbatch))


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise the error of a module inside, where torch has wrapped it in another with its arguments as text."""
    try:
        yield
    except RuntimeError as error:
        cause = error.__cause__
        if cause is None or "failed to run" not in str(error).lower():
            raise
        raise cause from cause.__cause__


class ListedSchedule(_PipelineScheduleRuntime):
    """Torch's schedule runtime executing the action lists of `schedule.py`.

    It posts receives early and never waits for a send, so sends overlap compute.
    """

    def __init__(self, stages: list[EdgeStage], num_microbatches: int, loss_function: LossFunction) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            stages, num_microbatches, loss_fn=loss_function, scale_grads=False
        )

    def follow(self, schedule: Schedule) -> None:
        """Use the actions of `schedule` from the next step on."""
        order: dict[int, Any] = {
            rank: [_Action(action.stage, TORCH_KINDS[action.kind], action.microbatch) for action in schedule[rank]]
            for rank in schedule
        }
        self._prepare_schedule_with_comms(order)
