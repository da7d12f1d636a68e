"""The tensors of a checkpoint as torch's files. Ranks tell one another what they wrote as JSON: torch would pickle it.

Every rank writes its boxes to a file of its own; no two ranks have the same box, so nobody has to be asked before. The
first rank of a folder then writes what lies where.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from holmes_runtime.checkpoint.checkpoint_folder import steps_of
from holmes_runtime.checkpoint.piece_index import (
    INDEX_VERSION,
    DamagedPiece,
    PieceFile,
    PieceIndex,
    WrittenBox,
    WrittenTensor,
    digest_in,
    digest_of,
)
from holmes_runtime.checkpoint.reshard import PieceSavePlanner, TensorPiece


def write_pieces(folder: Path, pieces: dict[str, TensorPiece], rank: int) -> tuple[WrittenTensor, ...]:
    """Writes what `rank` holds to a file in `folder`, which is made; with digests of what can be read back.

    Raises what torch's writer raises.
    """
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
        place = (stored.relative_path, stored.offset, stored.length)
        digest = digest_in(folder / stored.relative_path, stored.offset, stored.length)
        boxes[result.index.fqn].append(WrittenBox(tuple(chunk.offsets), tuple(chunk.sizes), *place, digest))
    return tuple(
        WrittenTensor(name, tuple(pieces[name].part.global_shape), tuple(of)) for name, of in boxes.items() if of
    )


def joined_boxes(written: Iterable[WrittenTensor]) -> tuple[WrittenTensor, ...]:
    """Each tensor once, with the boxes of all ranks that wrote of it."""
    together: dict[str, WrittenTensor] = {}
    for tensor in written:
        before = together.get(tensor.name, tensor._replace(boxes=()))
        together[tensor.name] = before._replace(boxes=before.boxes + tensor.boxes)
    return tuple(together.values())


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


def index_of_old(checkpoint: Path) -> PieceIndex:
    """Of a checkpoint from before there were digests, by torch's `.metadata`. Raises DamagedPiece if it is none."""
    path = checkpoint / ".metadata"
    try:
        content, steps = path.read_bytes(), steps_of(checkpoint)
        metadata = SafeReader(checkpoint).read_metadata()
    except (OSError, pickle.UnpicklingError, EOFError, ValueError, AttributeError, IndexError, KeyError) as error:
        raise DamagedPiece(f"{path} does not describe tensors: {error}") from None
    tensors = []
    for name, saved in metadata.state_dict_metadata.items():
        assert isinstance(saved, TensorStorageMetadata)
        boxes = []
        for number, chunk in enumerate(saved.chunks):
            stored: _StorageInfo = (metadata.storage_data or {})[MetadataIndex(name, chunk.offsets, number)]
            place = (stored.relative_path, stored.offset, stored.length)
            boxes.append(WrittenBox(tuple(chunk.offsets), tuple(chunk.sizes), *place, digest=""))
        tensors.append(WrittenTensor(name, tuple(saved.size), tuple(boxes)))
    files = files_of(tensors, {})
    return PieceIndex(INDEX_VERSION, digest_of(content), "", 0, steps, "", files, tuple(tensors))


def files_of(tensors: Iterable[WrittenTensor], hosts: Mapping[int, tuple[str, ...]]) -> tuple[PieceFile, ...]:
    """The files that hold `tensors`, by name; `hosts` are by rank those whose folders get what that rank wrote."""
    size_bytes: dict[str, int] = {}
    for tensor in tensors:
        for box in tensor.boxes:
            size_bytes[box.file] = max(size_bytes.get(box.file, 0), box.first_byte + box.size_bytes)
    ranks = {name: int(name.strip("_").partition("_")[0]) for name in size_bytes}
    return tuple(
        PieceFile(name, ranks[name], size, hosts.get(ranks[name], ())) for name, size in sorted(size_bytes.items())
    )


class SafeReader(FileSystemReader):
    """Torch's reader, but for a `.metadata` file that holds known records alone; torch would run what it says."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The checkpoint's metadata. Raises UnpicklingError for anything else in the file."""
        del args, kwargs
        with open(Path(self.path) / ".metadata", "rb") as file:
            metadata: Metadata = _MetadataUnpickler(file).load()
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    KNOWN = {
        "torch.distributed.checkpoint.metadata": {
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "_MEM_FORMAT_ENCODING",
        },
        "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
        "torch": {"Size", "float32", "strided"},
        "torch.serialization": {"_get_layout"},
        "pathlib": {"PosixPath"},
        "pathlib._local": {"PosixPath"},  # as Python 3.13 names it
    }

    def find_class(self, module_name: str, global_name: str) -> Any:
        """One of the records a metadata file is made of."""
        if global_name not in self.KNOWN.get(module_name, set()):
            raise pickle.UnpicklingError(f"{module_name}.{global_name} has no place in the metadata of a checkpoint")
        return super().find_class(module_name, global_name)
