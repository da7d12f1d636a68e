"""One rank's part of a pipeline: a step by the listed actions, an evaluation, and sums along the pipeline."""

from __future__ import annotations

from collections.abc import Sequence

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
from holmes_runtime.config.schedule import gradients_arrived
from holmes_runtime.model.build_stage import LossFunction, StageModule
from holmes_runtime.model.decoder import DTYPES
from holmes_runtime.parallel.edge_messages import EdgeMessages, wait_for
from holmes_runtime.parallel.edge_stage import EdgeStage, GradientAdded, ListedSchedule, own_errors
from holmes_runtime.parallel.loss_scale import LossScale


def beside_inputs(positions: Tensor | None, num_microbatches: int) -> list[tuple[Tensor, ...]]:
    """Return the further arguments of a stage's module by micro-batch: its part of `positions`, if there are any."""
    if positions is None:
        return [()] * num_microbatches
    return [(part,) for part in positions.chunk(num_microbatches)]


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

        With a `loss_scale` gradients belong to the scaled loss; losses are returned unscaled.
        """
        self.is_first = me.pp_rank == 0
        self.is_last = me.pp_rank == config.pp - 1
        self._stopwatch = stopwatch
        self._ranks = config.grid.pipeline(me.dp_rank, me.tp_rank)
        self._me, self._groups = me, groups
        self._indices = [stage.stage.index for stage in stages]
        self._modules = [stage.module for stage in stages]
        self._loss_function, self._loss_scale = loss_function, loss_scale
        self._num_microbatches = config.microbatches[me.dp_rank]
        last = len(config.stages) - 1
        self._num_fed = sum(index > 0 for index in self._indices)  # stages that get activations
        self._receives = {
            Direction.FORWARD: self._num_microbatches * self._num_fed,
            Direction.BACKWARD: self._num_microbatches * sum(index < last for index in self._indices),
        }
        self._messages = EdgeMessages(config, me, groups, device)
        self._stages: list[EdgeStage] = []
        if config.pp > 1:
            hidden = torch.empty(config.message_shape, dtype=DTYPES[config.value_type], device="meta")
            for stage in stages:
                edge_stage = EdgeStage(stage, config, self._ranks, groups, device, hidden)
                edge_stage.connect(self._stages, self._messages, gradient_added, stopwatch)
                self._stages.append(edge_stage)
            self._runtime = ListedSchedule(self._stages, self._num_microbatches, self._scaled_loss)
            self.follow(config)

    def follow(self, config: RunConfig) -> None:
        """Use the codecs and `extra_in_flight` of `config` from the next step on; it differs in nothing else.

        Called between steps, on all ranks between the same two.
        """
        self._messages.follow(config)
        if self._stages:
            schedule = config.schedule_of(self._me.dp_rank)
            arrived = gradients_arrived(schedule, self._me.pp_rank)
            self._runtime.follow(schedule)
            for stage in self._stages:
                stage.follow(arrived)

    def step(self, tokens: Tensor | None, step: int, positions: Tensor | None = None) -> list[Tensor]:
        """Run forward and backward of every micro-batch, adding to `.grad`. Return losses, scalars, on the last rank.

        tokens: int64 (samples of the replica, seq_length + 1), needed on the first and the last rank. Other ranks
        return an empty list. positions: in documents, int64 (samples of the replica, seq_length), on all ranks where
        documents are separate. Gradients are sums over micro-batches, not means.
        """
        self._messages.begin(step, self._receives)
        scale = self._loss_scale.scale if self._loss_scale else 1.0
        return [loss.detach() / scale for loss in self._scaled_step(tokens, positions)]

    def _scaled_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss whose gradients 16-bit floats can hold."""
        loss = self._loss_function(outputs, targets)
        return loss if self._loss_scale is None else loss * self._loss_scale.scale

    def _scaled_step(self, tokens: Tensor | None, positions: Tensor | None) -> list[Tensor]:
        losses: list[Tensor] = []
        more = beside_inputs(positions, self._num_microbatches)
        if not self._stages:
            assert tokens is not None
            microbatches = zip(tokens.chunk(self._num_microbatches), more, strict=True)
            for number, (microbatch, beside) in enumerate(microbatches):
                with self._stopwatch.lap("forward"), named_range(action_name("forward", number, 0)):
                    outputs = self._modules[0](microbatch[:, :-1], *beside)
                    losses.append(self._scaled_loss(outputs, microbatch[:, 1:]))
                with self._stopwatch.lap("backward"), named_range(action_name("backward", number, 0)):
                    losses[-1].backward()  # type: ignore[no-untyped-call]
                losses[-1].detach_()
            return losses
        inputs = (tokens[:, :-1].contiguous(),) if self.is_first and tokens is not None else ()
        targets = tokens[:, 1:].contiguous() if self.is_last and tokens is not None else None
        for stage in self._stages:
            stage.beside_inputs = more
            stage.extremes.clear()
        with own_errors():
            self._runtime.step(*inputs, target=targets, losses=losses, return_outputs=False)
        for stage in self._stages:
            stage.finish_sends()
        return losses

    def first_not_finite(self, losses: Sequence[Tensor]) -> int | None:
        """Return this rank's first stage with a forward that gave a number that is not finite in the last step.

        losses: the ones that step returned.
        """
        gave = {stage.stage_index: stage.extremes for stage in self._stages if stage.extremes}
        if self.is_last:
            gave[self._indices[-1]] = list(losses)
        bad = [index for index, values in gave.items() if not torch.stack(values).isfinite().all()]
        return min(bad, default=None)

    @torch.no_grad()
    def evaluate(
        self, tokens: Tensor | None, num_microbatches: int, batch: int, positions: Tensor | None = None
    ) -> list[Tensor]:
        """Return the losses of `num_microbatches` micro-batches, scalars, on the last rank; no gradients.

        Messages are rounded by `batch`, so that an evaluation repeated is the same.

        tokens: int64 (num_microbatches * micro_batch_size, seq_length + 1), and positions, as for `step`.
        """
        self._messages.begin(batch, {Direction.EVALUATION: num_microbatches * self._num_fed})
        losses: list[Tensor] = []
        sent: list[Transfer] = []
        microbatches = [None] * num_microbatches if tokens is None else tokens.chunk(num_microbatches)
        more = beside_inputs(positions, num_microbatches)
        # As many at a time as keep all ranks busy; sent tensors are released when those after them have been sent.
        for start in range(0, num_microbatches, len(self._ranks)):
            sends: list[Transfer] = []
            for chunk in range(len(self._modules)):
                for number in range(start, min(start + len(self._ranks), num_microbatches)):
                    self._evaluate_one(chunk, number, microbatches[number], more[number], losses, sends)
            wait_for(sent)
            sent = sends
        wait_for(sent)
        return losses

    def _evaluate_one(
        self,
        chunk: int,
        number: int,
        microbatch: Tensor | None,
        more: Sequence[Tensor],
        losses: list[Tensor],
        sends: list[Transfer],
    ) -> None:
        """Take a micro-batch through a stage of the rank; add to `losses` at the model's end, else to `sends`."""
        module = self._modules[chunk]
        if self.is_first and chunk == 0:
            assert microbatch is not None
            hidden = module(microbatch[:, :-1], *more)
        else:
            received = self._messages.receive(Direction.EVALUATION)
            received.wait()
            hidden = module(received.values(), *more)
        if self.is_last and chunk == len(self._modules) - 1:
            assert microbatch is not None
            losses.append(self._loss_function(hidden, microbatch[:, 1:]))
        else:
            sends.append(self._messages.send(Direction.EVALUATION, self._indices[chunk], number, hidden))

    def _neighbour(self, distance: int) -> int:
        """Return the global rank `distance` further in the pipeline, which closes to a ring."""
        return self._ranks[(self._me.pp_rank + distance) % len(self._ranks)]

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Return the sum of `values`, float64 (n,), over the pipeline ranks of this replica, equal on all of them.

        The sum travels down the pipeline and its result back up, on the groups of the edges: 2 (p - 1) hops, and only
        the ones between clusters are slow. A ring over all ranks would take 2 (n - 1) hops, each as slow as the
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
