"""Moves the weights of a rank to the result of an outer step, on all ranks that hold copies of them."""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.outer.outer_state import Values
from holmes_runtime.parallel.gradient_buckets import Shard
from holmes_runtime.parallel.zero1 import Zero1


def change_weights(zero1: Zero1, groups: RankGroups, names: Collection[str], values: Values, adds: bool) -> None:
    """Set the masters of parameters `names` and their copies to `values` of the owned pieces, or add `values` to them.

    Nothing is published yet.
    """
    chosen = set(names)
    zero1.wait()
    for shard in zero1.shards():
        if shard.name in chosen:
            moved = _shared(shard, values, groups, is_tied=shard.name == zero1.tied)
            if adds:
                shard.master.add_(moved)
            else:
                shard.master.copy_(moved)


def _shared(shard: Shard, values: Values, groups: RankGroups, is_tied: bool) -> Tensor:
    """Return the values of a shard on its device, received from the owner where that is another rank."""
    own = values.get(shard.name)
    device = shard.gradient.device
    moved = torch.empty(shard.stop - shard.start, device=device) if own is None else own.to(device)
    if groups.tp is not None and shard.part.is_whole:
        _broadcast(moved, groups.tp)
    if groups.tied is not None and is_tied:
        _broadcast(moved, groups.tied)
    return moved.to(shard.master.device)


def _broadcast(values: Tensor, group: ProcessGroup) -> None:
    """Broadcast from the first rank of the group."""
    dist.broadcast(values, group=group, group_src=0)
