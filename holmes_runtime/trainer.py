"""One rank's part of a training step: its stages, its part of the pipeline, gradients and optimizer states."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from holmes_runtime.checkpoint.description import Counters
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.stopwatch import Stopwatch
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.data.corpus import Corpus, Samples
from holmes_runtime.learning_rate import learning_rate
from holmes_runtime.model.build_stage import build_stage, loss_function
from holmes_runtime.model.tensor_parallel import TensorParallel
from holmes_runtime.parallel.loss_scale import LossScale
from holmes_runtime.parallel.pipeline import Pipeline
from holmes_runtime.parallel.zero1 import Zero1, clip_factor


@dataclass(frozen=True)
class StepResult:
    """Loss: mean over the global batch, None but on the last pipeline rank. grad_norm: global, before clipping.

    `skipped`: fp16 gradients overflowed, so that their norm is not known, and the weights stayed as they were.
    `stop`: some rank was asked to stop, so all do after this step. `examine`: some rank asks all for an examination.
    """

    loss: float | None
    grad_norm: float | None
    learning_rate: float
    skipped: bool
    stop: bool
    examine: bool


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
    ) -> None:
        self.config, self.me, self.groups, self.device = config, me, groups, device
        self.stopwatch = stopwatch or Stopwatch(device)
        self._wants_stop = self._wants_examination = False
        shape = config.model
        self.training = Samples(corpus.training, str(config.seed), shape.seq_length, shape.vocab_size)
        # Other samples than any step's, and the same at every evaluation.
        self.validation = Samples(corpus.validation, f"{config.seed}/evaluation", shape.seq_length, shape.vocab_size)
        tp = TensorParallel(groups.tp, me.tp_rank, config.tp, self.stopwatch)
        stages = [build_stage(config, stage, me, tp, device) for stage in config.stages_of(me.pp_rank)]
        self.zero1 = Zero1(
            [stage.module for stage in stages],
            {name: part for stage in stages for name, part in stage.parts.items()},
            config.optimizer,
            groups,
            config.microbatches[me.dp_rank],
            self.stopwatch,
        )
        self.loss_scale = LossScale() if config.value_type == "fp16" else None
        self.pipeline = Pipeline(
            config,
            me,
            stages,
            loss_function(config, tp),
            groups,
            device,
            self.zero1.gradient_added,
            self.loss_scale,
            self.stopwatch,
        )

    def ask_to_stop(self) -> None:
        """Makes the step under way the last on all ranks, or the next one if this comes too late."""
        self._wants_stop = True

    def ask_to_examine(self) -> None:
        """Has the next step's result ask all ranks for an examination."""
        self._wants_examination = True

    def step(self, step: int) -> StepResult:
        """Takes one step. Raises RuntimeError naming step and stage if the loss or the norm is not finite."""
        scale = self.loss_scale.scale if self.loss_scale else 1.0
        rate = learning_rate(self.config.optimizer, step, self.config.steps)
        self.zero1.start()
        losses = self.pipeline.step(self._tokens(self.training, step), step)
        squares = self.zero1.finish(self.config.total_microbatches * scale)
        loss = self._mean_loss(step, losses) if self.pipeline.is_last else None
        votes = squares.new_tensor([self._wants_stop, self._wants_examination])
        total_squares, *total_votes = self._sum_over_ranks(torch.cat([squares, votes])).tolist()
        grad_norm, (stop, examine) = math.sqrt(total_squares), (votes > 0 for votes in total_votes)
        self._wants_examination = False
        if self.loss_scale is not None and not self.loss_scale.update(math.isfinite(grad_norm)):
            return StepResult(loss, None, rate, skipped=True, stop=stop, examine=examine)
        if not math.isfinite(grad_norm):
            raise RuntimeError(f"step {step}, {self._where()}: the gradient norm is {grad_norm}")
        if self.config.emulation is None:
            self.zero1.step(rate, clip_factor(grad_norm, self.config.optimizer.grad_clip))
        else:
            # There is nothing to learn, and a real optimizer step would cost time that is not emulated.
            self.zero1.publish()
        return StepResult(loss, grad_norm, rate, skipped=False, stop=stop, examine=examine)

    def evaluate(self, num_batches: int) -> float | None:
        """Mean loss of `num_batches` global batches of the validation data, None but on the last pipeline rank."""
        losses: list[Tensor] = []
        with self.stopwatch.lap("evaluation"):
            for batch in range(num_batches):
                tokens = self._tokens(self.validation, batch)
                losses += self.pipeline.evaluate(tokens, self.config.microbatches[self.me.dp_rank], batch)
        return self._sum_over_replicas(losses) / num_batches if self.pipeline.is_last else None

    def counters(self, steps: int) -> Counters:
        """What a checkpoint after `steps` keeps beside the tensors."""
        scale = self.loss_scale or LossScale(1.0)
        return Counters(steps, self.zero1.steps_taken, scale.scale, scale.good_steps)

    def restore(self, counters: Counters) -> None:
        """Goes on from `counters`, the masters and moments having been loaded."""
        self.zero1.steps_taken = counters.optimizer_steps
        if self.loss_scale is not None:
            self.loss_scale.scale, self.loss_scale.good_steps = counters.loss_scale, counters.good_steps
        self.zero1.publish()

    def _tokens(self, samples: Samples, step: int) -> Tensor | None:
        """int64 tokens (samples of the replica, seq_length + 1), where they are needed."""
        if not (self.pipeline.is_first or self.pipeline.is_last):
            return None
        return samples.batch(step, self.config.sample_numbers(self.me.dp_rank)).to(self.device)

    def _sum_over_ranks(self, values: Tensor) -> Tensor:
        """The sum of `values`, float64 (n,), over all ranks of the run."""
        with self.stopwatch.lap("sync"):
            for group in self.groups.replicas:
                dist.all_reduce(values, group=group)
            if self.groups.tp is not None:
                dist.all_reduce(values, group=self.groups.tp)
            return self.pipeline.sum_over_ranks(values)

    def _sum_over_replicas(self, losses: list[Tensor]) -> float:
        """Of the losses of all replicas' micro-batches, the sum divided by how many a step has."""
        total = torch.stack(losses).sum()
        for group in self.groups.replicas:
            dist.all_reduce(total, group=group)
        return total.item() / self.config.total_microbatches

    def _mean_loss(self, step: int, losses: list[Tensor]) -> float:
        """Mean of the losses of all replicas' micro-batches. Raises RuntimeError if it is not finite."""
        mean = self._sum_over_replicas(losses)
        if not math.isfinite(mean):
            own = torch.stack(losses).sum().item()
            raise RuntimeError(f"step {step}, {self._where()}: the loss is {mean} (the sum of this replica's is {own})")
        return mean

    def _where(self) -> str:
        return f"stage {self.me.pp_rank} of replica {self.me.dp_rank} (rank {self.me.rank} on {self.me.host})"
