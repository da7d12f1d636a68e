"""The tensors of a checkpoint in torch's files. Ranks exchange records of them as JSON, where torch would use pickle.

Every rank writes its boxes to its own file. No two ranks have the same box, so they need not agree first. The first
rank of a folder then writes the metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from holmes_runtime.checkpoint.tensor_piece import TensorPiece
from holmes_runtime.node.checkpoint_files.checkpoint_names import PieceName
from holmes_runtime.node.checkpoint_files.piece_index import (
    PieceFile,
    WrittenBox,
    WrittenTensor,
    digest_in,
    sizes_of,
)


def saved_chunks(piece: TensorPiece) -> list[ChunkStorageMetadata]:
    """Return the boxes of a piece as a checkpoint names them."""
    return [ChunkStorageMetadata(chunk.offsets, chunk.sizes) for chunk, _ in piece.chunks()]


class PieceSavePlanner(DefaultSavePlanner):
    """The save plan of a {name: TensorPiece} for torch."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """Plan one item per box."""
        items = []
        for name, piece in self.state_dict.items():
            properties = TensorProperties(dtype=piece.values.dtype)
            for chunk in saved_chunks(piece):
                data = TensorWriteData(chunk=chunk, properties=properties, size=torch.Size(piece.part.global_shape))
                items.append(WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """Return the values to write as the box at `index`."""
        piece: TensorPiece = self.state_dict[index.fqn]
        return piece.chunk_at(index.offset)


def write_pieces(folder: Path, pieces: dict[str, TensorPiece], rank: int) -> tuple[WrittenTensor, ...]:
    """Write the pieces of `rank` to a file in `folder`, which is created. Return their boxes, with digests read back.

    Links in the folder are not followed. Raises what torch's writer raises.
    """
    if folder.is_symlink():
        raise OSError(f"{folder} is a link: remove it")
    for stray in folder.glob(f"__{rank}_*"):
        stray.unlink()
    writer, planner = FileSystemWriter(folder), PieceSavePlanner()
    planner.set_up_planner(pieces, writer.storage_meta())
    writer.set_up_storage_writer(False)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    named_by_rank = writer.prepare_global_plan([*(SavePlan([]) for _ in range(rank)), plan])[rank]
    boxes: dict[str, list[WrittenBox]] = {name: [] for name in pieces}
    chunks = {(name, chunk.offsets): chunk for name, piece in pieces.items() for chunk in saved_chunks(piece)}
    for result in writer.write_data(named_by_rank, planner).wait():
        assert result.index.offset is not None
        stored, chunk = result.storage_data, chunks[result.index.fqn, result.index.offset]
        place = (PieceName(stored.relative_path), stored.offset, stored.length)
        digest = digest_in(folder / place[0], stored.offset, stored.length)
        boxes[result.index.fqn].append(WrittenBox(tuple(chunk.offsets), tuple(chunk.sizes), *place, digest))
    return tuple(
        WrittenTensor(name, tuple(pieces[name].part.global_shape), tuple(of)) for name, of in boxes.items() if of
    )


def joined_boxes(written: Iterable[WrittenTensor]) -> tuple[WrittenTensor, ...]:
    """Return each tensor once, with the boxes of all ranks that wrote parts of it."""
    shapes: dict[str, tuple[int, ...]] = {}
    boxes: dict[str, list[WrittenBox]] = {}
    for tensor in written:
        shapes.setdefault(tensor.name, tensor.shape)
        boxes.setdefault(tensor.name, []).extend(tensor.boxes)
    return tuple(WrittenTensor(name, shape, tuple(boxes[name])) for name, shape in shapes.items())


def write_metadata(folder: Path, written: tuple[WrittenTensor, ...]) -> None:
    """Write torch's `.metadata`, which its own tools need to read the checkpoint: all boxes and their places."""
    tensors: dict[str, TensorStorageMetadata] = {}
    results = []
    for tensor in written:
        empty = TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size(tensor.shape), [])
        chunks = tensors.setdefault(tensor.name, empty).chunks
        for box in tensor.boxes:
            index = MetadataIndex(tensor.name, torch.Size(box.offsets), len(chunks))
            chunks.append(ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)))
            place = _StorageInfo(str(box.file), box.first_byte, box.size_bytes)
            results.append(WriteResult(index, box.size_bytes, place))
    FileSystemWriter(folder).finish(Metadata(dict(tensors)), [results])


def files_of(tensors: Iterable[WrittenTensor], hosts: Mapping[int, tuple[str, ...]]) -> tuple[PieceFile, ...]:
    """Return the files that hold `tensors`, by name. `hosts` are, by rank, the hosts whose folders get its files."""
    return tuple(
        PieceFile(name, name.rank, size, hosts.get(name.rank, ())) for name, size in sorted(sizes_of(tensors).items())
    )
