"""In one process, what crosses the edges of a plan: packed and unpacked where its stages meet, by the same names."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from holmes_runtime.comm.wire import Direction, MessageName, pack, unpack
from holmes_runtime.config.codec import Codec
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.trainer import Trainer


def across(values: Tensor, codec: Codec, name: MessageName, shards: int) -> Tensor:
    """What arrives of `values` (batch, seq, channels), of which each tensor shard sends its stretch of the sequence."""
    arrived = [
        unpack(pack(part, codec, name._replace(shard=shard)), codec, part.shape, part.dtype)
        for shard, part in enumerate(values.chunk(shards, 1))
    ]
    return torch.cat(arrived, 1)


class _Edge(torch.autograd.Function):
    """Passes hidden states on as they arrive over an edge, and their gradients as those do."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, codecs: tuple[Codec, Codec], name: MessageName, shards: int) -> Tensor:
        ctx.codec, ctx.name, ctx.shards = codecs[1], name._replace(direction=Direction.BACKWARD), shards
        return across(hidden, codecs[0], name, shards)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return across(gradients[0], ctx.codec, ctx.name, ctx.shards), None, None, None


class PackedCuts:
    """Hooks on the whole model of `trainer`, which is alone, at the cuts of `config`'s stages."""

    def __init__(self, trainer: Trainer, config: RunConfig) -> None:
        self._trainer = trainer
        self._seen: Counter[tuple[int, Direction, int]] = Counter()
        self.follow(config)
        (module,) = trainer.pipeline._modules
        for stage in config.stages[:-1]:
            module.get_submodule(f"blocks.{stage.stop_layer - 1}").register_forward_hook(
                partial(self._cross, stage.index)
            )

    def follow(self, config: RunConfig) -> None:
        """From now on the codecs are those of `config`, the same on all its edges."""
        edge = config.grid.edge_after(config.grid.at(0, 0, 0))
        self._codecs = config.codec_of("pp_forward", edge), config.codec_of("pp_backward", edge)
        self._config = config

    def _cross(self, edge: int, module: nn.Module, inputs: tuple[Tensor, ...], hidden: Tensor) -> Tensor:
        del module, inputs
        trains = torch.is_grad_enabled()
        direction = Direction.FORWARD if trains else Direction.EVALUATION
        step = self._trainer.pipeline._messages.step
        name = MessageName(self._config.seed, direction, step, self._seen[edge, direction, step], edge, 0)
        self._seen[edge, direction, step] += 1
        if not trains:
            return across(hidden, self._codecs[0], name, self._config.tp)
        arrived: Tensor = _Edge.apply(hidden, self._codecs, name, self._config.tp)  # type: ignore[no-untyped-call]
        return arrived
