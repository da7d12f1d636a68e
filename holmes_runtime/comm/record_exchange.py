"""Records between ranks as JSON in tensors of bytes. torch's own collectives for objects unpickle what a peer sends,
which would run it.

Every function is called by all ranks of the group with a record of one type.
"""

from __future__ import annotations

import ctypes
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, distributed_c10d

from holmes_runtime.config.strict_json import parse, to_json

Record = TypeVar("Record")
MOST_BYTES = 1 << 28  # of one record: a rank of a 7B model that saves says 0.1 MB


class _Refusing:
    def __init__(self, _file: object) -> None:
        raise RuntimeError(
            "a peer's object is not unpickled, as that could run anything: send tensors, or texts as tensors of bytes"
        )


def refuse_pickles() -> None:
    """From now on torch's collectives for objects raise RuntimeError where they would unpickle what a peer sent."""
    distributed_c10d._unpickler = _Refusing  # type: ignore[assignment]


def all_gather_records(mine: Record, group: ProcessGroup | None = None) -> list[Record]:
    """The records of all ranks, in the group's order. Raises ValueError naming what of one is not as it should be."""
    sizes, padded = _padded(mine, group)
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded, group=group)
    return _parsed(type(mine), gathered, sizes)


def gather_records(mine: Record, group: ProcessGroup | None = None) -> list[Record]:
    """The records of all ranks, in the group's order, on its first rank; nothing on the others. Raises as above."""
    sizes, padded = _padded(mine, group)
    first = dist.get_rank(group) == 0
    gathered = [torch.empty_like(padded) for _ in sizes] if first else None
    dist.gather(padded, gathered, group=group, group_dst=0)
    return _parsed(type(mine), gathered or [], sizes)


def broadcast_record(mine: Record, group: ProcessGroup | None = None, source: int = 0) -> Record:
    """The record of the group's rank `source`. Raises as above."""
    sizes, padded = _padded(mine, group)
    dist.broadcast(padded, group=group, group_src=source)
    return _parsed(type(mine), [padded], sizes[source : source + 1])[0]


def _padded(record: object, group: ProcessGroup | None) -> tuple[list[int], Tensor]:
    """The bytes of each rank's record, and this rank's, (longest,), uint8. Raises RuntimeError for a huge one."""
    encoded = bytearray(to_json(record).encode())
    size = torch.tensor([len(encoded)])
    gathered = [torch.empty_like(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, size, group=group)
    sizes = [int(each) for each in gathered]
    for rank, each in enumerate(sizes):
        if not 0 < each <= MOST_BYTES:
            name = type(record).__name__
            raise RuntimeError(f"rank {rank} of a group sends a {name} of {each} bytes; {MOST_BYTES} are the most")
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[: len(encoded)] = torch.frombuffer(encoded, dtype=torch.uint8)
    return sizes, padded


def _parsed(cls: type[Record], gathered: list[Tensor], sizes: list[int]) -> list[Record]:
    return [
        parse(cls, ctypes.string_at(each.data_ptr(), size).decode())
        for each, size in zip(gathered, sizes[: len(gathered)], strict=True)
    ]
