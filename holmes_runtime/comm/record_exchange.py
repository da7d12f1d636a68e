"""Records sent between ranks as JSON in tensors of bytes. torch's own collectives for objects unpickle data of peers,
which could run any code in it.

All ranks of the group call each function with a record of the same type. Each record has a tag, which is checked before
any part of the record is read.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, distributed_c10d

from holmes_runtime.comm.keyed_exchange import KeyedExchange
from holmes_runtime.config.strict_json import MAX_VALUES, parse, to_json
from holmes_runtime.node.admission.keyed_frames import TAG_BYTES

Record = TypeVar("Record")
SIZE_BYTES = 8
HEAD, RECORD = "the size of a control record", "a control record"
MAX_BYTES = 1 << 26  # of one record: a rank of a 7B model sends 0.1 MB at a save


class _Refusing:
    def __init__(self, _file: object) -> None:
        raise RuntimeError(
            "a peer's object is not unpickled, as that could run any code: send tensors, or text as a tensor of bytes"
        )


def refuse_pickles() -> None:
    """Make torch's collectives for objects raise RuntimeError instead of unpickling a peer's data."""
    distributed_c10d._unpickler = _Refusing  # type: ignore[assignment]


def all_gather_records(mine: Record, group: ProcessGroup | None = None) -> list[Record]:
    """Return the records of all ranks, in group order.

    Raises:
        FrameAltered: a record is not what its rank sent.
        ValueError: a record has a wrong value; the message names it.
    """
    heads, padded = _padded(mine, group)
    gathered = [torch.empty_like(padded) for _ in heads]
    dist.all_gather(gathered, padded, group=group)
    return [_parsed(type(mine), head, each) for head, each in zip(heads, gathered, strict=True)]


def gather_records(mine: Record, group: ProcessGroup | None = None) -> list[Record]:
    """Return the records of all ranks, in order, on the group's first rank, and none on others. Raises as above."""
    heads, padded = _padded(mine, group)
    first = dist.get_rank(group) == 0
    gathered = [torch.empty_like(padded) for _ in heads] if first else None
    dist.gather(padded, gathered, group=group, group_dst=0)
    return [_parsed(type(mine), head, each) for head, each in zip(heads, gathered or (), strict=first)]


def broadcast_record(mine: Record, group: ProcessGroup | None = None, source: int = 0) -> Record:
    """Return the record of the group's rank `source`. Raises as above."""
    heads, padded = _padded(mine, group)
    dist.broadcast(padded, group=group, group_src=source)
    return _parsed(type(mine), heads[source], padded)


class _Head(NamedTuple):
    """The header of a rank's record: its size, and its tag in this exchange."""

    exchange: KeyedExchange
    source: int
    size: int
    tag: bytes


def _padded(record: object, group: ProcessGroup | None) -> tuple[list[_Head], Tensor]:
    """Return all ranks' headers, and this rank's record, uint8 (longest,). Raises RuntimeError for a huge record."""
    exchange, name, me = KeyedExchange(group), type(record).__name__, dist.get_rank(group)
    encoded = bytearray(to_json(record).encode())
    said = len(encoded).to_bytes(SIZE_BYTES, "big") + exchange.tag(me, RECORD, memoryview(encoded))
    head = torch.frombuffer(bytearray(said + exchange.tag(me, HEAD, said)), dtype=torch.uint8)
    gathered = [torch.empty_like(head) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, head, group=group)
    heads = []
    for rank, each in enumerate(gathered):
        came = ctypes.string_at(each.data_ptr(), each.nbytes)
        said, tag = came[:-TAG_BYTES], came[-TAG_BYTES:]
        exchange.check(rank, HEAD, tag, said)
        heads.append(_Head(exchange, rank, int.from_bytes(said[:SIZE_BYTES], "big"), said[SIZE_BYTES:]))
        if not 0 < heads[-1].size <= MAX_BYTES:
            size = heads[-1].size
            raise RuntimeError(f"rank {rank} of a group sends a {name} of {size} bytes; the limit is {MAX_BYTES}")
    padded = torch.zeros(max(each.size for each in heads), dtype=torch.uint8)
    padded[: len(encoded)] = torch.frombuffer(encoded, dtype=torch.uint8)
    return heads, padded


def _parsed(cls: type[Record], head: _Head, padded: Tensor) -> Record:
    came = ctypes.string_at(padded.data_ptr(), head.size)
    head.exchange.check(head.source, RECORD, head.tag, came)
    return parse(cls, came.decode(), MAX_VALUES)
