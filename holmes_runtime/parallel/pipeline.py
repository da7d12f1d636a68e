"""Run one rank's part of a pipeline: the actions of a step, an evaluation, and sums over the pipeline's ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.stopwatch import Stopwatch, named_range
from holmes_runtime.comm.streams import Transfer
from holmes_runtime.comm.wire import Direction
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.rank_metrics import action_name
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.schedule import Action, ActionKind, gradients_arrived, receive_positions
from holmes_runtime.model.build_stage import LossFunction, StageModule
from holmes_runtime.model.context_parallel import ContextParallel
from holmes_runtime.model.distilled_loss import SoftTargets
from holmes_runtime.parallel.batch import Batch, as_read
from holmes_runtime.parallel.edge_messages import EdgeMessages, Receiving, wait_for
from holmes_runtime.parallel.loss_scale import LossScale
from holmes_runtime.parallel.stage_run import GradientAdded, StageRun


def _direction(action: Action) -> Direction:
    """Return the direction of the message that `action` waits for."""
    return Direction.FORWARD if action.kind is ActionKind.FORWARD else Direction.BACKWARD


class Pipeline:
    """One rank's part of its replica's pipeline: its stages, first layers first, and the edges to its neighbours.

    It runs the schedule's actions in order. Messages travel while the rank computes: where it is safe, a receive starts
    one action before the action that needs it, and a send is awaited only once the schedule proves that it has arrived.
    """

    def __init__(
        self,
        config: RunConfig,
        me: Rank,
        stages: Sequence[StageModule],
        loss_function: LossFunction,
        cp: ContextParallel,
        groups: RankGroups,
        device: torch.device,
        gradient_added: GradientAdded,
        loss_scale: LossScale | None,
        stopwatch: Stopwatch,
    ) -> None:
        """`gradient_added` is called for every parameter whose `.grad` grew without autograd's hooks.

        With a `loss_scale`, gradients belong to the scaled loss. The losses returned are unscaled.
        """
        self.is_first = me.pp_rank == 0
        self.is_last = me.pp_rank == config.pp - 1
        self._stopwatch = stopwatch
        self._ranks = config.grid.pipeline(me.dp_rank, me.tp_rank)
        self._me, self._groups, self._cp = me, groups, cp
        self._modules = [stage.module for stage in stages]
        self._loss_function, self._loss_scale = loss_function, loss_scale
        self._num_microbatches = config.microbatches[me.dp_rank]
        self._last = len(config.stages) - 1
        self._stages = {
            stage.stage.index: StageRun(
                stage, self._scaled_loss if stage.stage.index == self._last else None, gradient_added
            )
            for stage in stages
        }
        self._weight = 1.0  # factor on the mean loss over the current batch's targets
        self._num_fed = sum(index > 0 for index in self._stages)  # this rank's stages that receive activations
        self._messages = EdgeMessages(config, me, groups, device)
        self._receives: dict[Action, Receiving] = {}  # in progress, by the action that needs the message
        self._sends: dict[Action, Transfer] = {}  # in progress, by the action whose result is sent
        self.follow(config)

    def follow(self, config: RunConfig) -> None:
        """Use the codecs and `extra_in_flight` of `config` from the next step on. Nothing else in it may have changed.

        All ranks must call this between the same two steps.
        """
        self._messages.follow(config)
        schedule = config.schedule_of(self._me.dp_rank)
        self._actions = schedule[self._me.pp_rank]
        self._starts = receive_positions(schedule, self._me.pp_rank)
        self._expected = Counter(map(_direction, chain.from_iterable(self._starts.values())))
        self._arrived = gradients_arrived(schedule, self._me.pp_rank)

    def step(self, batch: Batch, step: int) -> list[Tensor]:
        """Run the forward and backward of every micro-batch, adding to `.grad`. Return the losses (scalars), if last.

        `batch` is the replica's. The first and last rank need its tokens and, if documents are separate, all ranks need
        its positions. Ranks before the last return no losses. Gradients are sums over micro-batches, not means.
        """
        self._messages.begin(step, self._expected)
        tokens, self._weight = batch.tokens, batch.weight
        microbatches = [None] * self._num_microbatches if tokens is None else tokens.chunk(self._num_microbatches)
        more, teachers = batch.more_inputs(self._num_microbatches), batch.teachers(self._num_microbatches)
        for stage in self._stages.values():
            stage.extremes.clear()
        losses: list[Tensor] = []
        for position, action in enumerate(self._actions):
            for later in self._starts.get(position, ()):
                self._receives[later] = self._messages.receive(_direction(later))
            if action.kind is ActionKind.FORWARD:
                number = action.microbatch
                self._forward(action, microbatches[number], more[number], teachers[number], losses)
            else:
                self._backward(action)
        for action in list(self._sends):
            self._finish_send(action)
        scale = self._loss_scale.scale if self._loss_scale else 1.0
        return [loss / scale for loss in losses]

    def _scaled_loss(self, logits: Tensor, targets: Tensor, teacher: SoftTargets | None = None) -> Tensor:
        """Return the weighted loss, scaled so that 16-bit floats can hold its gradients."""
        loss = self._loss_function(logits, targets, teacher) * self._weight
        return loss if self._loss_scale is None else loss * self._loss_scale.scale

    def _receive(self, action: Action) -> Tensor | None:
        """Wait for the message that `action` needs, if any, and return its activations or gradients (b, s / tp, h)."""
        receive = self._receives.pop(action, None)
        if receive is None:
            return None
        forward = action.kind is ActionKind.FORWARD
        with (
            self._stopwatch.lap("pp_forward" if forward else "pp_backward"),
            named_range(f"receive {'forward' if forward else 'backward'} {action.microbatch}"),
        ):
            receive.wait()
        return receive.values()

    def _finish_send(self, action: Action) -> None:
        """Wait until the result of `action` has left, if it was sent."""
        transfer = self._sends.pop(action, None)
        if transfer is not None:
            with self._stopwatch.lap("pp_forward" if action.kind is ActionKind.FORWARD else "pp_backward"):
                transfer.wait()

    def _forward(
        self,
        action: Action,
        microbatch: Tensor | None,
        more: Sequence[Tensor | int],
        teacher: SoftTargets | None,
        losses: list[Tensor],
    ) -> None:
        """Run a forward. Its input proves that some gradients sent earlier have arrived."""
        inputs = self._receive(action)
        if inputs is None:
            assert microbatch is not None
            inputs = self._inputs(microbatch)
        for backward in self._arrived.get(action, []):
            self._finish_send(backward)
        targets = None
        if microbatch is not None and action.stage == self._last:
            soft = None if teacher is None else self._soft_targets(teacher, microbatch.device)
            targets = self._targets(microbatch), soft
        with (
            self._stopwatch.lap("forward"),
            named_range(action_name(action.kind.value, action.microbatch, action.stage)),
        ):
            output = self._stages[action.stage].forward(action.microbatch, inputs, more, targets)
        if action.stage == self._last:
            losses.append(output)
        else:
            self._sends[action] = self._messages.send(Direction.FORWARD, action.stage, action.microbatch, output)

    def _inputs(self, microbatch: Tensor) -> Tensor:
        """Return the tokens of this rank's part of the sequences: (micro_batch_size, seq_length / cp)."""
        return as_read(self._cp.take(microbatch[:, :-1]))

    def _targets(self, microbatch: Tensor) -> Tensor:
        """Return the token that follows each token of `_inputs`."""
        return self._cp.take(microbatch[:, 1:]).contiguous()

    def _soft_targets(self, teacher: SoftTargets, device: torch.device) -> SoftTargets:
        """Return this rank's part of the soft targets of a micro-batch, on `device`."""
        return SoftTargets(*(self._cp.take(values).to(device, non_blocking=True) for values in teacher))

    def _backward(self, action: Action) -> None:
        """Run a backward, or half of one. The gradient that it receives proves that its activations have arrived."""
        stage = self._stages[action.stage]
        gradient = self._receive(action)
        self._finish_send(Action(action.stage, ActionKind.FORWARD, action.microbatch))
        wanted = None
        with (
            self._stopwatch.lap("backward"),
            named_range(action_name(action.kind.value, action.microbatch, action.stage)),
        ):
            if action.kind is ActionKind.BACKWARD:
                wanted = stage.backward(action.microbatch, gradient)
            elif action.kind is ActionKind.BACKWARD_INPUT:
                wanted = stage.backward_input(action.microbatch, gradient)
            else:
                stage.backward_weight(action.microbatch)
        if wanted is not None:
            self._sends[action] = self._messages.send(Direction.BACKWARD, action.stage, action.microbatch, wanted)

    def first_not_finite(self, losses: Sequence[Tensor]) -> int | None:
        """Return this rank's first stage whose last forwards produced a number that is not finite, if there is one.

        `losses` are those that `step` returned.
        """
        outputs = {index: stage.extremes for index, stage in self._stages.items() if stage.extremes}
        if self.is_last:
            outputs[self._last] = list(losses)
        not_finite = [index for index, values in outputs.items() if not torch.stack(values).isfinite().all()]
        return min(not_finite, default=None)

    @torch.no_grad()
    def evaluate(self, batch: Batch, num_microbatches: int, number: int) -> list[Tensor]:
        """Return the losses (scalars) of `num_microbatches` micro-batches on the last rank, without any gradients.

        `batch` is as for `step`. Its `number` determines how messages are rounded, so a repeated evaluation gives the
        same losses.
        """
        self._messages.begin(number, {Direction.EVALUATION: num_microbatches * self._num_fed})
        tokens, self._weight = batch.tokens, batch.weight
        losses: list[Tensor] = []
        sent: list[Transfer] = []
        microbatches = [None] * num_microbatches if tokens is None else tokens.chunk(num_microbatches)
        more = batch.more_inputs(num_microbatches)
        # As few micro-batches at a time as keep all ranks busy. Their sent tensors are released after the next ones.
        for start in range(0, num_microbatches, len(self._ranks)):
            sends: list[Transfer] = []
            for chunk in range(len(self._modules)):
                for index in range(start, min(start + len(self._ranks), num_microbatches)):
                    self._evaluate_one(chunk, index, microbatches[index], more[index], losses, sends)
            wait_for(sent)
            sent = sends
        wait_for(sent)
        return losses

    def _evaluate_one(
        self,
        chunk: int,
        index: int,
        microbatch: Tensor | None,
        more: Sequence[Tensor | int],
        losses: list[Tensor],
        sends: list[Transfer],
    ) -> None:
        """Run a micro-batch through stage `chunk` of the rank. Add its loss to `losses`, or its output to `sends`."""
        module = self._modules[chunk]
        if self.is_first and chunk == 0:
            assert microbatch is not None
            hidden = module(self._inputs(microbatch), *more)
        else:
            received = self._messages.receive(Direction.EVALUATION)
            received.wait()
            hidden = module(received.values(), *more)
        if self.is_last and chunk == len(self._modules) - 1:
            assert microbatch is not None
            losses.append(self._loss_function(hidden, self._targets(microbatch)) * self._weight)
        else:
            sends.append(self._messages.send(Direction.EVALUATION, list(self._stages)[chunk], index, hidden))

    def _neighbour(self, distance: int) -> int:
        """Return the global rank `distance` positions further along the pipeline, taken as a ring."""
        return self._ranks[(self._me.pp_rank + distance) % len(self._ranks)]

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Return the sum of `values`, float64 (n,), over this replica's pipeline ranks, the same on all of them.

        The sum travels down the pipeline and the total back up, over the edges' groups. Of these 2 (p - 1) hops, only
        those between clusters are slow. A ring of all r ranks would take 2 (r - 1) hops, each as slow as the slowest.
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
