"""Pieces of tensors as torch's distributed checkpoint saves them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from holmes_runtime.checkpoint.tensor_piece import TensorPiece


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
