"""The tensors of a checkpoint as torch's files. Ranks tell one another what they wrote as JSON: torch would pickle it.

Every rank writes its boxes to a file of its own; no two ranks have the same box, so nobody has to be asked before. The
first rank then writes what lies where.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed.checkpoint.state_dict_loader as dcp_loader
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from holmes_runtime.checkpoint.reshard import PieceLoadPlanner, PieceSavePlanner, TensorPiece
from holmes_runtime.checkpoint.safe_reader import SafeReader


class WrittenBox(NamedTuple):
    """A box of a whole tensor, and the bytes of the file that hold it. `offsets` and `sizes` have a number a dim."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    first_byte: int
    size_bytes: int


class WrittenTensor(NamedTuple):
    """What one rank wrote of one tensor, fp32 of `shape`."""

    name: str
    shape: tuple[int, ...]
    boxes: tuple[WrittenBox, ...]


def write_pieces(folder: Path, pieces: dict[str, TensorPiece], rank: int) -> tuple[WrittenTensor, ...]:
    """Writes what `rank` holds to a file in `folder`, which is made. Raises what torch's writer raises."""
    writer, planner = FileSystemWriter(folder), PieceSavePlanner()
    planner.set_up_planner(pieces, writer.storage_meta())
    writer.set_up_storage_writer(False)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    named_by_rank = writer.prepare_global_plan([*(SavePlan([]) for _ in range(rank)), plan])[rank]
    boxes: dict[str, list[WrittenBox]] = {name: [] for name in pieces}
    chunks = {(name, chunk.offsets): chunk for name, piece in pieces.items() for chunk, _ in piece.chunks()}
    for result in writer.write_data(named_by_rank, planner).wait():
        assert result.index.offset is not None
        stored, chunk = result.storage_data, chunks[result.index.fqn, result.index.offset]
        box = WrittenBox(tuple(chunk.offsets), tuple(chunk.sizes), stored.relative_path, stored.offset, stored.length)
        boxes[result.index.fqn].append(box)
    return tuple(
        WrittenTensor(name, tuple(pieces[name].part.global_shape), tuple(of)) for name, of in boxes.items() if of
    )


def write_metadata(folder: Path, written: tuple[WrittenTensor, ...]) -> None:
    """Writes torch's `.metadata`: what all ranks wrote, and where."""
    tensors: dict[str, TensorStorageMetadata] = {}
    results = []
    for tensor in written:
        empty = TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size(tensor.shape), [])
        chunks = tensors.setdefault(tensor.name, empty).chunks
        for box in tensor.boxes:
            index = MetadataIndex(tensor.name, torch.Size(box.offsets), len(chunks))
            chunks.append(ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)))
            place = _StorageInfo(box.file, box.first_byte, box.size_bytes)
            results.append(WriteResult(index, box.size_bytes, place))
    FileSystemWriter(folder).finish(Metadata(dict(tensors)), [results])


def read_pieces(folder: Path, pieces: dict[str, TensorPiece]) -> None:
    """Reads into `pieces` what any ranks wrote of their tensors. Raises CheckpointException with what was wrong."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp_loader.load(dict(pieces), storage_reader=SafeReader(folder), planner=PieceLoadPlanner(), no_dist=True)
