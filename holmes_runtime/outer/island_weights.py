"""The weights of one rank as the outer loop reads and changes them, and the weights of the bundled trainer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.model.tensor_part import TensorPart
from holmes_runtime.parallel.gradient_buckets import Shard
from holmes_runtime.parallel.zero1 import Zero1

Values = dict[str, Tensor]
"""By parameter the numbers of a rank's piece, fp32 (stop - start,)."""


class OwnedPart(NamedTuple):
    """Row-major elements [start, stop) of the part of a parameter on a rank."""

    part: TensorPart
    start: int
    stop: int


class IslandWeights(Protocol):
    """The weights of one rank. Each number of the model is owned by one rank, which exchanges it."""

    owned: Mapping[str, OwnedPart]

    def read(self, name: str) -> Tensor:
        """Return the current elements of the owned part of a parameter, (stop - start,)."""

    def hold(self) -> None:
        """Make the next step publish nothing: the weights change once more before `publish`."""

    def change(self, names: Collection[str], values: Values, adds: bool) -> None:
        """Set parameters `names` and their copies on other ranks to `values` of owned parts, or add the values."""

    def publish(self) -> None:
        """Make the changes visible to the next forward."""


class BundledWeights:
    """The masters of ZeRO-1 on this rank."""

    def __init__(self, zero1: Zero1, groups: RankGroups, tp_rank: int) -> None:
        self._zero1, self._groups = zero1, groups
        self._changed: set[str] = set()  # parameters whose masters are not published yet
        shards = (each for each in zero1.shards() if (tp_rank == 0 or not each.part.is_whole) and not each.is_copy)
        self._masters = {each.name: each for each in shards}
        self.owned: Mapping[str, OwnedPart] = {
            name: OwnedPart(each.part, each.start, each.stop) for name, each in self._masters.items()
        }

    def read(self, name: str) -> Tensor:
        return self._masters[name].master.detach()

    def hold(self) -> None:
        self._zero1.hold()

    def publish(self) -> None:
        """Publish the changed weights, or all if the optimizer's update was held."""
        if self._changed or self._zero1.is_held:
            self._zero1.publish(self._changed)
        self._changed = set()

    def change(self, names: Collection[str], values: Values, adds: bool) -> None:
        """Set the masters of parameters `names` and their copies, or add to them."""
        chosen = set(names)
        self._zero1.wait()
        for shard in self._zero1.shards():
            if shard.name in chosen:
                moved = self._shared(shard, values)
                if adds:
                    shard.master.add_(moved)
                else:
                    shard.master.copy_(moved)
        self._changed |= chosen

    def _shared(self, shard: Shard, values: Values) -> Tensor:
        """Return the values of a shard on its device, received from its owner if that is another rank."""
        own, groups = values.get(shard.name), self._groups
        device = shard.gradient.device
        moved = torch.empty(shard.stop - shard.start, device=device) if own is None else own.to(device)
        if groups.tp is not None and shard.part.is_whole:
            _broadcast(moved, groups.tp)
        if groups.tied is not None and shard.name == self._zero1.tied:
            _broadcast(moved, groups.tied)
        return moved.to(shard.master.device)


def _broadcast(values: Tensor, group: ProcessGroup) -> None:
    """Broadcast from the first rank of the group."""
    dist.broadcast(values, group=group, group_src=0)
