"""`python -m holmes_runtime.train CONFIG.json`: trains one rank's part of the run; started by torchrun."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record

from holmes_runtime import comm, corpus, metrics
from holmes_runtime.emulated import EmulatedStage, mean_activation
from holmes_runtime.gradients import GradientSync, clip_factor
from holmes_runtime.model import GptStage, cross_entropy
from holmes_runtime.pipeline import LossFunction, Pipeline
from holmes_runtime.process_tree import die_with_parent
from holmes_runtime.run_config import Group, Optimizer, Rank, RunConfig


@dataclass(frozen=True)
class Launched:
    """What torchrun and the launcher say in the environment."""

    rank: int
    local_rank: int
    world_size: int
    metrics_dir: Path


def read_environment(environ: Mapping[str, str]) -> Launched:
    """The launch of this rank. Raises RuntimeError if torchrun's variables are missing."""
    missing = [name for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") if name not in environ]
    if missing:
        raise RuntimeError(f"{', '.join(missing)} not set: start this module with torchrun")
    return Launched(
        rank=int(environ["RANK"]),
        local_rank=int(environ["LOCAL_RANK"]),
        world_size=int(environ["WORLD_SIZE"]),
        metrics_dir=Path(environ.get("HOLMES_METRICS_DIR", ".")),
    )


def build_stage(config: RunConfig, pp_rank: int, device: torch.device) -> tuple[nn.Module, LossFunction]:
    """The module of stage `pp_rank` on `device`, real or emulated, and the loss of the last stage's output."""
    stage = config.stages[pp_rank]
    if config.emulation is None:
        return GptStage(config.model, stage, config.seed).to(device), cross_entropy
    return EmulatedStage(config.model, stage, config.emulation).to(device), mean_activation


def build_optimizer(module: nn.Module, settings: Optimizer) -> torch.optim.AdamW:
    """AdamW over the parameters of `module`; only matrices and embeddings decay, not biases and norms."""
    parameters = list(module.parameters())
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
    )


def describe_rank(config: RunConfig, me: Rank) -> str:
    """One line for people: where this rank runs, what it holds and which interface each of its groups uses."""
    stage = config.stages[me.pp_rank]
    parts = [f"rank {me.rank} on {me.host}: stage {me.pp_rank} (layers {stage.first_layer}-{stage.stop_layer - 1})"]
    parts.append(f"replica {me.dp_rank}")
    for group in config.groups:
        if me.rank in group.ranks:
            parts.append(f"{_describe_group(config, group, me)} over {group.interface_of(me.rank)}")
    return ", ".join(parts)


def _describe_group(config: RunConfig, group: Group, me: Rank) -> str:
    """What rank `me` does in `group`, such as "activations to rank 3"."""
    others = [config.placement(rank) for rank in group.ranks if rank != me.rank]
    if group.axis == "dp":
        return f"dp with {' '.join(str(other.rank) for other in others)}"
    sends = (group.axis == "pp_forward") == (others[0].pp_rank > me.pp_rank)
    payload = "activations" if group.axis == "pp_forward" else "gradients"
    return f"{payload} {'to' if sends else 'from'} rank {others[0].rank}"


class Trainer:
    """One rank's model, pipeline, gradients and optimiser, ready to take steps."""

    def __init__(
        self, config: RunConfig, me: Rank, text: Tensor, groups: comm.RankGroups, device: torch.device
    ) -> None:
        self.config, self.me, self.text, self.groups, self.device = config, me, text, groups, device
        module, loss_function = build_stage(config, me.pp_rank, device)
        self.pipeline = Pipeline(config, me.rank, module, loss_function, groups, device)
        self.gradients = GradientSync(module.parameters(), groups.dp, config.dp, config.num_microbatches)
        # An emulated stage has nothing to learn, and a real optimiser step would cost time that is not emulated.
        self.optimizer = None if config.emulation else build_optimizer(module, config.optimizer)

    def step(self, step: int) -> tuple[float | None, float]:
        """Takes one step; returns the loss (None but on the last stage) and the global gradient norm before clipping.

        Raises RuntimeError naming step and stage if the loss or the norm is not finite.
        """
        self.gradients.start()
        losses = self.pipeline.step(self._tokens(step))
        self.gradients.finish()
        loss = self._mean_loss(step, losses) if self.pipeline.is_last else None
        grad_norm = math.sqrt(self.pipeline.sum_over_stages(self.gradients.sum_of_squares()))
        if not math.isfinite(grad_norm):
            raise RuntimeError(f"step {step}, {self._place()}: the gradient norm is {grad_norm}")
        factor = clip_factor(grad_norm, self.config.optimizer.grad_clip)
        if factor < 1.0:
            self.gradients.scale(factor)
        if self.optimizer is not None:
            self.optimizer.step()
        return loss, grad_norm

    def _tokens(self, step: int) -> Tensor | None:
        """int64 tokens (samples_per_replica, seq_length + 1) of this replica, where they are needed."""
        if not (self.pipeline.is_first or self.pipeline.is_last):
            return None
        count = self.config.samples_per_replica
        slots = range(self.me.dp_rank * count, (self.me.dp_rank + 1) * count)
        return corpus.batch(self.text, self.config.seed, step, slots, self.config.model.seq_length).to(self.device)

    def _mean_loss(self, step: int, losses: list[Tensor]) -> float:
        """Mean of the micro-batches' losses over all replicas. Raises RuntimeError if it is not finite."""
        own = torch.stack(losses).mean()
        total = own.clone()
        if self.groups.dp is not None:
            dist.all_reduce(total, group=self.groups.dp)
        mean = total.item() / self.config.dp
        if not math.isfinite(mean):
            raise RuntimeError(
                f"step {step}, {self._place()}: the loss is {mean} (this replica's own loss is {own.item()})"
            )
        return mean

    def _place(self) -> str:
        return f"stage {self.me.pp_rank} of replica {self.me.dp_rank} (rank {self.me.rank} on {self.me.host})"


def train(config: RunConfig, launched: Launched) -> None:
    """Runs all steps of this rank and writes one line of metrics for each."""
    me = config.placement(launched.rank)
    torch.set_num_threads(config.threads_per_rank)
    device = comm.select_device(config.device, launched.local_rank, os.environ)
    comm.check_interfaces(config, me.rank)
    text = corpus.load_corpus(config.corpus, me.host, config.model.seq_length)

    comm.connect(config, me.rank, launched.world_size)
    groups = comm.open_groups(config, me.rank)
    corpus.check_same_corpus(text, me.host)
    trainer = Trainer(config, me, text, groups, device)
    print(describe_rank(config, me), flush=True)

    with metrics.MetricsFile(launched.metrics_dir, me.rank) as lines:
        run_steps(trainer, lines, counts_bytes=launched.local_rank == 0)
    dist.destroy_process_group()


def run_steps(trainer: Trainer, lines: metrics.MetricsFile, counts_bytes: bool) -> None:
    """Takes every step; a barrier before the first and after the last makes the run's byte counts complete."""
    config = trainer.config
    tokens_per_step = config.global_batch_size * config.model.seq_length
    dist.barrier()
    ended_s = time.monotonic()
    counters = comm.read_interface_bytes() if counts_bytes else {}
    for step in range(config.steps):
        loss, grad_norm = trainer.step(step)
        now_s = time.monotonic()
        step_s, ended_s = now_s - ended_s, now_s
        if step == config.steps - 1:
            dist.barrier()
        before, counters = counters, comm.read_interface_bytes() if counts_bytes else {}
        moved = metrics.counters_increase(before, counters)
        tokens_per_s = tokens_per_step / step_s
        lines.write(metrics.StepMetrics(step, trainer.me.rank, loss, grad_norm, step_s, tokens_per_s, moved))


@record
def main() -> None:
    """Reads the command line and the environment, and trains."""
    parser = argparse.ArgumentParser(prog="python -m holmes_runtime.train", description="Train one rank of a run.")
    parser.add_argument("config", type=Path, help="the run configuration, JSON")
    arguments = parser.parse_args()
    die_with_parent()
    launched = read_environment(os.environ)
    config = RunConfig.from_json(arguments.config.read_text(encoding="utf-8"))
    train(config, launched)


if __name__ == "__main__":
    main()
