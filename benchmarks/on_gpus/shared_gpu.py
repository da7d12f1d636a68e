"""`python -m benchmarks.on_gpus.shared_gpu --device cuda`: one rank of a pipeline whose ranks share one device.

NCCL takes one rank a GPU, so messages go through host memory and over Gloo: what is looked at is the rest of the
trainer, its streams, hooks and buffers on a GPU, with real neighbours. Torchrun's variables are set; one line of JSON
has the losses.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from holmes_runtime.comm import process_groups
from holmes_runtime.comm.group_opening import opening_order
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.rank_grid import EDGE_AXES
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.trainer import Trainer
from holmes_runtime.trial import Trial, random_corpus

SHAPE = ModelShape(
    family="llama",
    num_layers=4,
    hidden_size=128,
    num_heads=4,
    num_kv_heads=4,
    ffn_hidden_size=256,
    vocab_size=300,
    seq_length=64,
)
STEPS = 5
BACKEND = "through-host"


class ThroughHost(dist.ProcessGroup):
    """Messages of two ranks, copied to host memory and back around Gloo."""

    def __init__(self, gloo: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._gloo = gloo

    def send(self, tensors: list[Tensor], dst_rank: int, tag: int) -> dist.Work:
        """Sends a copy that the device has finished."""
        on_host = [tensor.cpu() for tensor in tensors]
        return Copied(self._gloo.send(on_host, dst_rank, tag), on_host, [])

    def recv(self, tensors: list[Tensor], src_rank: int, tag: int) -> dist.Work:
        """Receives into host memory; what arrives is copied when it is waited for."""
        on_host = [torch.empty_like(tensor, device="cpu") for tensor in tensors]
        return Copied(self._gloo.recv(on_host, src_rank, tag), on_host, tensors)

    def _get_backend(self, device: torch.device) -> Any:
        """What the runtime asks for its number of connections: one, as Gloo's options name no device."""
        del device
        return self._gloo

    def getBackendName(self) -> str:
        """Its name."""
        return BACKEND


class Copied(dist.Work):
    """A message under way; `wanted` gets what has arrived."""

    def __init__(self, work: dist.Work, on_host: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
        super().__init__()
        self._work, self._on_host, self._wanted = work, on_host, wanted

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits, and copies once."""
        del timeout
        self._work.wait()
        for tensor, arrived in zip(self._wanted, self._on_host, strict=False):
            tensor.copy_(arrived)
        self._wanted = ()
        return True


def _create(options: Any, _: Any) -> ThroughHost:
    gloo = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, options.timeout)
    return ThroughHost(gloo, options.group_rank, options.group_size)


def open_edges(config: RunConfig, rank: int) -> RankGroups:
    """The groups of rank `rank` of a pipeline of two, each through host memory."""
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    opened = {
        group.axis: dist.new_group(list(group.ranks), backend=BACKEND, timeout=timedelta(seconds=config.timeout_s))
        for group in opening_order(config)
    }
    forward, backward = (opened.get(axis) for axis in EDGE_AXES)
    if rank == 0:
        return RankGroups(forward_out=forward, backward_in=backward)
    return RankGroups(forward_in=forward, backward_out=backward)


def train(device: torch.device, rank: int, ranks: int) -> list[float]:
    """The losses of a few steps, none but on the last of `ranks`."""
    config = replace(Trial(SHAPE, "cpu", "fp32", threads=1, micro_batch_size=2, pp=ranks).config(), steps=STEPS)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    process_groups.connect(config, rank, config.world_size)
    groups = open_edges(config, rank) if ranks > 1 else RankGroups()
    trainer = Trainer(config, config.grid.rank(rank), random_corpus(SHAPE), groups, device)
    losses = [trainer.step(step).loss for step in range(STEPS)]
    trainer.zero1.wait()
    dist.barrier()
    return [loss for loss in losses if loss is not None]


def main() -> None:
    """Reads the command line and the environment, and trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    given = parser.parse_args()
    losses = train(torch.device(given.device, 0), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    print(json.dumps(losses), flush=True)


if __name__ == "__main__":
    main()
