"""One rank of what Holmes is compared with: torch's own parallel training, each as its documentation recommends.

`python -m benchmarks.torch_rivals CONFIG.json ddp=6 fsdp2=6 stock-1f1b=6` trains so many steps with each, on the ranks,
samples, layers and settings of the run configuration, and writes a line a step to
$HOLMES_METRICS_DIR/SYSTEM/metrics-rank<k>.jsonl.

- ddp: DistributedDataParallel over all ranks; `no_sync` but for the last micro-batch, whose backward overlaps buckets.
- fsdp2: `fully_shard` of each layer over all ranks; weights are gathered once a step, asynchronously and ahead of their
  use, and gradients reduced once, in the last backward.
- stock-1f1b: the stages, ranks and network interfaces of the plan, by torch's Schedule1F1B, with `fully_shard` over the
  replicas of a stage, weights gathered as above.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from holmes_runtime.comm import process_groups
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.rank_metrics import counters_increase
from holmes_runtime.config.run_config import RunConfig, Stage
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.data.samples import Samples, make_samples
from holmes_runtime.model.build_stage import build_stage, loss_function
from holmes_runtime.model.tensor_parallel import TensorParallel
from holmes_runtime.node.interface_counters import read_byte_counters
from holmes_runtime.node.process_tree import die_with_parent
from holmes_runtime.train import read_environment

CPU = torch.device("cpu")


class DataParallel:
    """All layers on every rank; the micro-batches of all replicas dealt out over all ranks."""

    def __init__(self, config: RunConfig, me: Rank, sharded: bool) -> None:
        shape = config.model
        self.model = build_stage(config, Stage(0, 0, shape.num_layers), me, TensorParallel(), CPU).module
        self.synchronised: nn.Module = self.model
        if sharded:
            shard(self.model, init_device_mesh("cpu", (config.world_size,)))
        else:
            # All ranks start from the same weights, so none need be sent.
            self.synchronised = DistributedDataParallel(self.model, init_sync=False, gradient_as_bucket_view=True)
        self.loss = loss_function(config, TensorParallel())
        self.num_microbatches = config.total_microbatches // config.world_size
        own = config.global_batch_size // config.world_size
        self.sample_numbers = range(me.rank * own, (me.rank + 1) * own)

    def step(self, tokens: Tensor) -> Tensor:
        """The mean loss of this rank's `tokens`, int64 (samples, seq_length + 1); gradients are the global batch's."""
        prefetch(self.model)
        losses = []
        for position, microbatch in enumerate(tokens.chunk(self.num_microbatches)):
            with self._accumulating(is_last=position == self.num_microbatches - 1):
                loss = self.loss(self.synchronised(microbatch[:, :-1]), microbatch[:, 1:]) / self.num_microbatches
                loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def _accumulating(self, is_last: bool) -> AbstractContextManager[None]:
        """Gradients travel with the last micro-batch alone."""
        if isinstance(self.synchronised, DistributedDataParallel):
            return nullcontext() if is_last else self.synchronised.no_sync()
        assert isinstance(self.model, FSDPModule)
        self.model.set_is_last_backward(is_last)
        self.model.set_requires_gradient_sync(is_last)
        self.model.set_reshard_after_backward(is_last)
        return nullcontext()

    def sum_over_stages(self, square: Tensor) -> Tensor:
        """The same: this rank has the gradients of all layers."""
        return square


class StockPipeline:
    """The plan's pipeline on torch's Schedule1F1B, its stages sharded over their replicas."""

    def __init__(self, config: RunConfig, me: Rank, groups: process_groups.RankGroups) -> None:
        (stage,) = config.stages_of(me.pp_rank)
        self.model = build_stage(config, stage, me, TensorParallel(), CPU).module
        assert groups.dp is not None
        shard(self.model, DeviceMesh.from_group(groups.dp, "cpu"))
        self.edge = groups.forward_in or groups.forward_out
        self.schedule = Schedule1F1B(
            PipelineStage(self.model, stage.index, config.pp, CPU, group=self.edge),
            config.microbatches[me.dp_rank],
            loss_fn=loss_function(config, TensorParallel()),
        )
        self.is_first, self.is_last = me.pp_rank == 0, me.pp_rank == config.pp - 1
        self.sample_numbers = config.sample_numbers(me.dp_rank)

    def step(self, tokens: Tensor) -> Tensor | None:
        """The mean loss of this replica's `tokens`, on the last stage; gradients are the global batch's."""
        prefetch(self.model)
        losses: list[Tensor] = []
        inputs = (tokens[:, :-1].contiguous(),) if self.is_first else ()
        targets = tokens[:, 1:].contiguous() if self.is_last else None
        self.schedule.step(*inputs, target=targets, losses=losses if self.is_last else None, return_outputs=False)
        return torch.stack(losses).mean().detach() if self.is_last else None

    def sum_over_stages(self, square: Tensor) -> Tensor:
        """The sum of a stage's squared norm over the stages."""
        dist.all_reduce(square, group=self.edge)
        return square


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """`fully_shard` of each layer and of what is left; weights stay whole until the last backward."""
    for child in model.children():
        for layer in child.children() if isinstance(child, nn.ModuleDict) else ():
            fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)


def prefetch(model: nn.Module) -> None:
    """Starts to gather all sharded weights, in the order of the forward, which waits for each layer's own."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard(async_op=True)


def train(
    config: RunConfig, system: DataParallel | StockPipeline, num_steps: int, samples: Samples
) -> Iterator[tuple[float, Tensor | None]]:
    """Of each step its seconds and this rank's mean loss. Emulated weights stay as they are, as in Holmes' trainer."""
    settings = config.optimizer
    parameters = list(system.model.parameters())
    matrices, others = [p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        foreach=True,
    )
    dist.barrier()
    ended_s = time.monotonic()
    for step in range(num_steps):
        loss = system.step(samples.batch(step, system.sample_numbers))
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=True)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        norm = system.sum_over_stages(norm.square()).sqrt()
        if config.emulation is None:
            if settings.grad_clip is not None:
                clip_grads_with_norm_(parameters, settings.grad_clip, norm, foreach=True)
            for group in optimizer.param_groups:
                group["lr"] = settings.rate_at(step, config.steps)
            optimizer.step()
        optimizer.zero_grad()
        before_s, ended_s = ended_s, time.monotonic()
        yield ended_s - before_s, loss


def main() -> None:
    """Reads the command line and the environment, and trains with one system after the other."""
    die_with_parent()
    launched = read_environment(os.environ)
    config = RunConfig.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    me = config.grid.rank(launched.rank)
    torch.set_num_threads(config.threads_per_rank)
    shape = config.model
    corpus = load_corpus(config.data, me.host, shape.seq_length, shape.vocab_size)
    samples = make_samples(config, corpus.training, str(config.seed))
    # Not as Holmes' own ranks connect, which refuse pickles: torch's pipeline stages send one another theirs.
    dist.init_process_group("gloo", timeout=timedelta(seconds=config.timeout_s))
    groups = process_groups.open_groups(config, me.rank)
    systems: dict[str, Callable[[], DataParallel | StockPipeline]] = {
        "ddp": lambda: DataParallel(config, me, sharded=False),
        "fsdp2": lambda: DataParallel(config, me, sharded=True),
        "stock-1f1b": lambda: StockPipeline(config, me, groups),
    }
    for argument in sys.argv[2:]:
        name, _, num_steps = argument.partition("=")
        folder = launched.metrics_dir / name
        folder.mkdir(parents=True, exist_ok=True)
        counters = read_byte_counters()
        with (folder / f"metrics-rank{me.rank}.jsonl").open("w", encoding="utf-8") as lines:
            for step_s, loss in train(config, systems[name](), int(num_steps), samples):
                before, counters = counters, read_byte_counters()
                moved = {nic: count._asdict() for nic, count in counters_increase(before, counters).items()}
                line = {"loss": None if loss is None else loss.item(), "step_s": step_s, "interfaces": moved}
                lines.write(json.dumps(line) + "\n")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
