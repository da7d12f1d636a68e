"""The weights of a user's own trainer: tensors that each rank holds whole, and DTensors as made by fully_shard."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from holmes_runtime.comm.record_exchange import all_gather_records
from holmes_runtime.model.tensor_part import TensorPart
from holmes_runtime.outer.island_weights import OwnedPart, Values
from holmes_runtime.outer.outer_step import digest_of


class HeldPart(NamedTuple):
    """The part of a parameter that a rank holds."""

    name: str
    part: TensorPart


class _HeldParts(NamedTuple):
    parts: tuple[HeldPart, ...]


class _SharedPart(NamedTuple):
    """A part on this rank, owned by rank `owner`. `group` joins the ranks with copies; None without copies."""

    held: HeldPart
    owner: int
    group: ProcessGroup | None


class LocalWeights:
    """The `parameters` of rank `rank` by name. All ranks of the island, which `group` joins, make theirs together.

    Among ranks with copies, ownership is balanced by elements. Parameters without a gradient are left out.

    Raises:
        RuntimeError: a parameter is distributed in an unsupported way; names it.
    """

    def __init__(
        self, parameters: Iterable[tuple[str, Tensor]], rank: int, group: ProcessGroup, timeout: timedelta
    ) -> None:
        trained: dict[str, Tensor] = {}
        for item in parameters:
            if not isinstance(item, tuple):  # a tensor, or the name alone
                raise RuntimeError("parameters come without their names: give Island model.named_parameters()")
            name, each = item
            if name in trained:
                raise RuntimeError(f"two parameters are called {name}: give each its own name")
            if each.requires_grad:
                trained[name] = each
        self._parameters: Mapping[str, Tensor] = {name: each for name, each in trained.items() if _local(each).numel()}
        mine = _HeldParts(tuple(HeldPart(name, _part_of(name, each)) for name, each in self._parameters.items()))
        holders = _holders([each.parts for each in all_gather_records(mine, group)])
        if not holders:
            raise RuntimeError("no rank has a parameter with a gradient: give Island model.named_parameters()")
        groups: dict[tuple[int, ...], ProcessGroup] = {}
        for ranks in sorted({tuple(each) for each in holders.values() if len(each) > 1}):
            made = dist.new_group(list(ranks), timeout=timeout, backend="gloo", group_desc="islands")
            if rank in ranks:
                groups[ranks] = made
        owned_numbers = Counter[int]()
        self._parts: list[_SharedPart] = []
        for held, having in holders.items():
            owner = min(having, key=lambda each: (owned_numbers[each], each))
            owned_numbers[owner] += math.prod(held.part.shape)
            if rank in having:
                self._parts.append(_SharedPart(held, owner, groups.get(tuple(having))))
        self.owned: Mapping[str, OwnedPart] = {
            held.name: OwnedPart(held.part, 0, math.prod(held.part.shape))
            for held, owner, _ in self._parts
            if owner == rank
        }

    def read(self, name: str) -> Tensor:
        return _local(self._parameters[name]).flatten()

    def hold(self) -> None:
        """Do nothing: the optimizer updates the weights in place."""

    def publish(self) -> None:
        """Do nothing: changes are made in place."""

    def change(self, names: Collection[str], values: Values, adds: bool) -> None:
        """Set the local part of parameters `names`, or add to it, on all ranks with copies."""
        chosen = set(names)
        for held, owner, group in self._parts:
            if held.name not in chosen:
                continue
            own = values.get(held.name)
            moved = torch.empty(math.prod(held.part.shape)) if own is None else own
            if group is not None:
                dist.broadcast(moved, owner, group)
            local = _local(self._parameters[held.name])
            moved = moved.view(local.shape).to(local.device)
            if adds:
                local.add_(moved)
            else:
                local.copy_(moved)

    def check_copies(self) -> None:
        """Check that ranks with copies have the same values.

        Raises:
            RuntimeError: they differ, like tensor shards that are not DTensors; names the parameter and the rank.
        """
        for held, owner, group in self._parts:
            if group is None:
                continue
            mine = digest_of([_local(self._parameters[held.name]).cpu().contiguous()])
            theirs = mine.clone()
            dist.broadcast(theirs, owner, group)
            if not torch.equal(mine, theirs):
                raise RuntimeError(
                    f"parameter {held.name} of shape {held.part.shape} has other values on this rank than on rank "
                    f"{owner}: islands exchange tensors that each rank has whole, and DTensors"
                )


def _local(parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter, without a copy."""
    with torch.no_grad():
        local: Tensor = parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()
        return local.detach()


def _part_of(name: str, parameter: Tensor) -> TensorPart:
    """Return the part of a parameter that this rank holds. Raises RuntimeError naming the parameter."""
    shape = tuple(parameter.shape)
    if not isinstance(parameter, DTensor):
        return TensorPart(shape, (0,) * len(shape), shape)
    if any(each.is_partial() for each in parameter.placements):
        raise RuntimeError(f"parameter {name} is a partial sum ({parameter.placements}), which islands cannot exchange")
    sizes, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return TensorPart(shape, tuple(offset), tuple(sizes))


def _holders(by_rank: Iterable[Iterable[HeldPart]]) -> dict[HeldPart, list[int]]:
    """Return the ranks that hold each part, the largest part first. Raises RuntimeError if shapes differ."""
    found: dict[HeldPart, list[int]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for rank, parts in enumerate(by_rank):
        for held in parts:
            shape = held.part.global_shape
            if shapes.setdefault(held.name, shape) != shape:
                raise RuntimeError(
                    f"parameter {held.name} has shape {shape} on rank {rank} and {shapes[held.name]} on an earlier "
                    "one: islands exchange tensors that each rank has whole, and DTensors"
                )
            found.setdefault(held, []).append(rank)
    order = sorted(found, key=lambda each: (-math.prod(each.part.shape), each.name, each.part.offset))
    return {held: found[held] for held in order}
