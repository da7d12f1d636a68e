"""The trainer of one rank: it takes training steps with the rank's stages, pipeline, gradients and optimizer states."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from holmes_runtime.checkpoint.tensor_piece import TensorPiece, weights_of, whole_piece
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.record_exchange import all_gather_records
from holmes_runtime.comm.stopwatch import Stopwatch
from holmes_runtime.comm.travel_digests import differences, differs, wires_in_words
from holmes_runtime.comm.travel_digests import in_words as digests_in_words
from holmes_runtime.config.messages import CHANGED, NOT_FINITE
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.data.corpus import Corpus
from holmes_runtime.data.host_copies import HostCopy, to_device
from holmes_runtime.data.read_ahead import READING, BatchesAhead
from holmes_runtime.data.samples import ALL_SAMPLES, Samples, make_samples
from holmes_runtime.model.build_stage import build_stage, loss_function
from holmes_runtime.model.context_parallel import ContextParallel
from holmes_runtime.model.expert_parallel import ExpertParallel
from holmes_runtime.model.tensor_parallel import TensorParallel
from holmes_runtime.node.checkpoint_files.description import Counters, OuterCounters, Validated, validated_after
from holmes_runtime.parallel.batch import Batch, max_documents
from holmes_runtime.parallel.loss_scale import LossScale
from holmes_runtime.parallel.not_finite import first_makers, in_words, last_makers
from holmes_runtime.parallel.pipeline import Pipeline
from holmes_runtime.parallel.zero1 import Zero1
from holmes_runtime.parallel.zero3 import Zero3
from holmes_runtime.published.first_weights import load_first_adapters, load_first_weights


@dataclass(frozen=True)
class StepResult:
    """The result of one step.

    `loss`: the mean over the global batch; None except on the last pipeline rank. `grad_norm`: global, before clipping.
    `skipped`: fp16 gradients overflowed, so their norm is unknown and the weights did not change. `stop`: a rank was
    asked to stop, so all ranks stop after this step. `examine`: a rank asked for an examination, in which all take
    part. `exchange`: the outer sync at which a rank asked all of this island's ranks to arrive now; 0 if none.
    """

    loss: float | None
    grad_norm: float | None
    learning_rate: float
    skipped: bool
    stop: bool
    examine: bool
    exchange: int


class Trainer:
    """One rank's stages, pipeline, gradients and optimizer, ready to take steps."""

    def __init__(
        self,
        config: RunConfig,
        me: Rank,
        corpus: Corpus,
        groups: RankGroups,
        device: torch.device,
        stopwatch: Stopwatch | None = None,
        draws: bool = True,
        before_update: Callable[[], None] = lambda: None,
    ) -> None:
        """Initial weights are random with `draws`, else zero. Each step calls `before_update` before changing them."""
        self.config, self.me, self.groups, self.device = config, me, groups, device
        self.stopwatch = stopwatch or Stopwatch(device)
        self._wants_stop = self._wants_examination = False
        self._wanted_exchange = 0
        self.validated: Validated | None = None  # the outcome of all evaluations so far, the same on all ranks
        self._before_update = before_update
        self.training = make_samples(config, corpus.training, str(config.seed))
        # Validation has its own order of samples, the same at every evaluation and on every island.
        key = f"{config.seed}/evaluation"
        self.validation = replace(self.training, tokens=corpus.validation, key=key, own=ALL_SAMPLES)
        self._batches = BatchesAhead(lambda step: self._read(self.training, step), config.steps, me.host, device)
        tp = TensorParallel(groups.tp, me.tp_rank, config.tp, self.stopwatch)
        cp = context_parallel(config, me, groups, self.stopwatch)
        ep = ExpertParallel(groups.ep, config.grid.expert_part(me), config.grid.expert_replicas, self.stopwatch)
        self.loss_scale = LossScale() if config.value_type == "fp16" else None
        self._stages = stages = [
            build_stage(config, stage, me, tp, device, draws, self._scale, cp, ep)
            for stage in config.stages_of(me.pp_rank)
        ]
        self.zero1 = (Zero3 if config.shards_weights(me) else Zero1)(
            [stage.module for stage in stages],
            {name: part for stage in stages for name, part in stage.parts.items()},
            config.optimizer,
            groups,
            config.microbatches[me.dp_rank],
            self.stopwatch,
            tied=next((stage.tied for stage in stages if stage.tied is not None), None),
            is_copy=me.pp_rank > 0,
            offload=config.optimizer_offload,
        )
        self.pipeline = Pipeline(
            config,
            me,
            stages,
            loss_function(config, tp),
            cp,
            groups,
            device,
            self.zero1.gradient_added,
            self.loss_scale,
            self.stopwatch,
        )

    def ask_to_stop(self) -> None:
        """Stop all ranks after the current step or, if it is too late for that, after the next one."""
        self._wants_stop = True

    def ask_to_examine(self) -> None:
        """Ask all ranks for an examination. The request reaches them with the next step's result."""
        self._wants_examination = True

    def ask_for_exchange(self, exchange: int) -> None:
        """Ask all ranks, in every step's result from now on, to arrive at outer sync `exchange`. Only one may ask."""
        self._wanted_exchange = exchange

    def step(self, step: int) -> StepResult:
        """Take one step.

        Raises:
            RuntimeError: The loss or the gradient norm is not finite; the message names the step and the ranks that
                caused it. Or a rank received data that differs from the data sent; the message names the wire.
        """
        rate = self.config.optimizer.rate_at(step, self.config.steps)
        self.zero1.start()
        with self.stopwatch.lap(READING):
            batch = self._batches.take(step)
        losses = self.pipeline.step(batch, step)
        squares = self.zero1.finish(self.config.total_microbatches * self._scale())
        requests = [self._wants_stop, self._wants_examination, self._wanted_exchange]
        self._wants_examination = False
        on_device = to_device(torch.tensor(requests, dtype=torch.float64), self.device)
        summands = [squares, self._sum_of(losses) / self.config.tp, on_device]
        digests = self.groups.digests
        if digests is not None:
            summands.append(digests.balance(self.device))
        sums = self._sum_over_ranks(torch.cat(summands))
        if digests is not None:
            digests.sums.add(sums.nan_to_num())
        on_host = HostCopy(sums)
        self._before_update()
        # The device itself clips or skips the update; the host reads the sums only afterwards.
        if self.config.emulation is None:
            self.zero1.step(rate, sums[0].sqrt())
        else:
            # An optimizer step would take real time in an emulated run, which has nothing to learn.
            self.zero1.publish_update()
        self.stopwatch.add_up()
        return self._result(step, rate, losses, squares, *on_host.wait())

    def _result(
        self,
        step: int,
        rate: float,
        losses: list[Tensor],
        squares: Tensor,
        total_squares: float,
        total_loss: float,
        stop: float,
        examine: float,
        exchange: float,
        balance: float = 0.0,
    ) -> StepResult:
        """Return the result from this rank's `losses` and `squares` and the sums over all ranks. Raises as `step`."""
        if differs(balance):
            self._blame_wire(step)
        loss, grad_norm = total_loss / self.config.total_microbatches, math.sqrt(total_squares)
        if not math.isfinite(loss):
            stages = self._gather_stages(self.pipeline.first_not_finite(losses))
            self._blame(first_makers(stages), step, f"the loss is {loss}")
        skipped = self.loss_scale is not None and not self.loss_scale.update(math.isfinite(grad_norm))
        if not skipped and not math.isfinite(grad_norm):
            ranks = self._gather_stages(None if squares.isfinite().all() else 0)
            self._blame(last_makers(tuple(ranks)), step, f"the gradient norm is {grad_norm}")
        return StepResult(
            loss=loss if self.pipeline.is_last else None,
            grad_norm=None if skipped else grad_norm,
            learning_rate=rate,
            skipped=skipped,
            stop=stop > 0,
            examine=examine > 0,
            exchange=int(exchange),
        )

    def evaluate(self, num_batches: int, steps: int) -> float | None:
        """Return the mean validation loss of `num_batches` global batches; None except on the last pipeline rank.

        All ranks record the loss of one of them in `validated`, as the loss after `steps` steps. A loss that is not
        finite becomes None in both.
        """
        losses: list[Tensor] = []
        with self.stopwatch.lap("evaluation"):
            for number in range(num_batches):
                batch = self._read(self.validation, number).with_tensors(lambda values: to_device(values, self.device))
                losses += self.pipeline.evaluate(batch, self.config.microbatches[self.me.dp_rank], number)
        total = self._sum_of(losses)
        if self.pipeline.is_last:
            for group in self.groups.replicas:
                dist.all_reduce(total, group=group)
        loss = total / self.config.total_microbatches / num_batches
        is_source = self.me == self.config.grid.at(self.config.pp - 1, 0, 0)
        agreed = self._sum_over_ranks(loss if is_source else torch.zeros_like(loss))
        if self.groups.digests is not None:
            self.groups.digests.sums.add(agreed.nan_to_num())
        self.validated = validated_after(self.validated, agreed.item(), steps)
        return loss.item() if self.pipeline.is_last and self.validated.loss is not None else None

    @property
    def early_stop(self) -> str | None:
        """The reason why the run stops early; None while the validation loss may still fall."""
        settings, seen = self.config.evaluation, self.validated
        if settings is None or settings.patience is None or seen is None or seen.since_lowest < settings.patience:
            return None
        if seen.lowest is None:
            return f"the validation loss was never finite in {seen.since_lowest} evaluations"
        lowest = f"{seen.lowest:.4f} (step {seen.lowest_steps})"
        return f"the validation loss did not fall below {lowest} in {seen.since_lowest} evaluations"

    def counters(self, steps: int, outer: OuterCounters | None = None) -> Counters:
        """Return the counters for a checkpoint after `steps` steps, with an island's `outer` counters."""
        scale = self.loss_scale or LossScale(1.0)
        samples = self.training.first + steps * self.config.global_batch_size
        taken = self.zero1.steps_taken
        return Counters(steps, taken, scale.scale, scale.good_steps, samples, outer, self.validated)

    def restore(self, counters: Counters) -> None:
        """Continue from `counters`. Masters and moments must have been loaded."""
        first = counters.samples - counters.steps * self.config.global_batch_size  # not 0 if the batch size changed
        self.training = replace(self.training, first=first)
        self.zero1.steps_taken = counters.optimizer_steps
        self.validated = counters.validated
        if self.loss_scale is not None:
            self.loss_scale.scale, self.loss_scale.good_steps = counters.loss_scale, counters.good_steps
        self.zero1.publish()

    def begin_from(self, weights: Path) -> None:
        """Start from the published model in the folder `weights`.

        Each replica reads its own shards and receives the others. Every rank reads the frozen weights that it uses.

        Raises:
            RuntimeError: The folder cannot be read, or holds another model.
        """
        try:
            load_first_weights(weights, self.config.model, self._first_pieces())
        except (OSError, ValueError) as error:
            raise RuntimeError(f"host {self.me.host}: weights {weights}: {error}") from None
        if self.config.lora is None:
            self.zero1.publish()

    def begin_from_adapters(self, folder: Path) -> None:
        """Start from the adapters in `folder`, in the format of the peft library.

        Raises:
            RuntimeError: The folder cannot be read, or holds other adapters.
        """
        assert self.config.lora is not None
        try:
            load_first_adapters(folder, self.config.model, self.config.lora, weights_of(self.zero1.shards()))
        except (OSError, ValueError) as error:
            raise RuntimeError(f"host {self.me.host}: adapters {folder}: {error}") from None
        self.zero1.publish()

    def _first_pieces(self) -> dict[str, TensorPiece]:
        """Return the weights to read from a published model: with adapters the frozen ones, else this rank's shards."""
        if self.config.lora is None:
            return weights_of(self.zero1.shards())
        return {
            name: whole_piece(parameter, stage.parts[name])
            for stage in self._stages
            for name, parameter in stage.module.named_parameters()
            if not parameter.requires_grad
        }

    def _scale(self) -> float:
        """Return the factor by which losses and their gradients are scaled."""
        return self.loss_scale.scale if self.loss_scale else 1.0

    def _read(self, samples: Samples, step: int) -> Batch:
        """Return this replica's samples in host memory.

        The first and last stages read tokens; the last also reads loss weights and soft targets. If documents are
        separate, every stage reads the positions itself, so that none are sent. A rehearsal needs only tokens.
        """
        numbers = self.config.sample_numbers(self.me.dp_rank)
        needs_positions = self.config.data.documents != "joined" and self.config.emulation is None
        positions = samples.positions(step, numbers) if needs_positions else None
        is_taught = self.config.data.teacher is not None and samples is not self.validation
        needs_teacher = is_taught and self.pipeline.is_last and self.config.emulation is None
        return Batch(
            samples.batch(step, numbers) if self.pipeline.is_first or self.pipeline.is_last else None,
            positions,
            samples.target_weight(step) if self.pipeline.is_last and self.config.emulation is None else 1.0,
            0 if positions is None else max_documents(positions),
            samples.soft_targets(step, numbers) if needs_teacher else None,
        )

    def _sum_of(self, losses: list[Tensor]) -> Tensor:
        """Return the sum of `losses`, float64 (1,); zero if there are none."""
        return torch.stack([torch.zeros((), device=self.device), *losses]).double().sum(0, keepdim=True)

    def _sum_over_ranks(self, values: Tensor) -> Tensor:
        """Return the sum of `values`, float64 (n,), over all ranks of the run."""
        with self.stopwatch.lap("sync"):
            for group in self.groups.replicas:
                dist.all_reduce(values, group=group)
            if self.groups.tp is not None:
                dist.all_reduce(values, group=self.groups.tp)
            return self.pipeline.sum_over_ranks(values)

    def _gather_stages(self, stage: int | None) -> dict[Rank, int]:
        """Return the `stage` that each rank passes, without ranks that pass None. All ranks call this together."""
        stages = torch.zeros(len(self.config.grid.ranks), dtype=torch.float64)
        stages[self.me.rank] = 0 if stage is None else stage + 1
        sums = HostCopy(self._sum_over_ranks(to_device(stages, self.device))).wait()
        return {self.config.grid.rank(rank): int(value) - 1 for rank, value in enumerate(sums) if value}

    def _blame_wire(self, step: int) -> NoReturn:
        """Raise RuntimeError on the first rank whose digests differ, while the others wait as in `_blame`."""
        assert self.groups.digests is not None
        so_far = f"after step {step} all was equal" if step else "this is the first step"
        try:
            differing = differences(all_gather_records(self.groups.digests.record()), self.config)
        except (ValueError, RuntimeError) as error:
            wires = wires_in_words(self.config)
            raise RuntimeError(
                f"step {step + 1}: data between ranks {CHANGED}, in one of the groups {wires}; {so_far}; "
                f"it is unknown in which, because digests could not be compared: {error}"
            ) from None
        if differing and self.me.rank != differing[0].odd[0]:
            HostCopy(self._sum_over_ranks(torch.zeros(1, dtype=torch.float64, device=self.device))).wait()
        problem = digests_in_words(differing, self.config) if differing else f"the sum over all ranks {CHANGED}"
        raise RuntimeError(f"step {step + 1}: {problem}; {so_far}")

    def _blame(self, makers: Sequence[Rank], step: int, problem: str) -> NoReturn:
        """Raise RuntimeError on the ranks that first produced a number that is not finite.

        The other ranks wait for these in a sum, and therefore end like the peers of any failed rank.
        """
        if makers and self.me not in makers:
            HostCopy(self._sum_over_ranks(torch.zeros(1, dtype=torch.float64, device=self.device))).wait()
        ranks = in_words(makers or [self.me], self.config.dp)
        raise RuntimeError(f"step {step + 1}, {ranks}: {problem}, {NOT_FINITE}")


def context_parallel(config: RunConfig, me: Rank, groups: RankGroups, stopwatch: Stopwatch) -> ContextParallel:
    """Return the part of every sequence that `me` computes."""
    ranks = sorted(config.grid.sequence(me))  # torch numbers the members of a group in this order
    parts = tuple(config.grid.rank(rank).dp_rank % config.cp for rank in ranks)
    return ContextParallel(groups.cp, me.dp_rank % config.cp, parts, stopwatch)
