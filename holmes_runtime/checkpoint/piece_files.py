"""The tensors of a checkpoint as torch's files. Ranks exchange what they wrote as JSON: torch would pickle it.

Every rank writes its boxes to a file of its own. No two ranks have the same box, so they need not agree first. The
first rank of a folder then writes the metadata.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
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

from holmes_runtime.checkpoint.reshard import PieceSavePlanner, TensorPiece
from holmes_runtime.config.checks import shown
from holmes_runtime.config.strict_json import decode
from holmes_runtime.node.checkpoint_files.checkpoint_folder import steps_of
from holmes_runtime.node.checkpoint_files.checkpoint_names import PieceName, SaveId
from holmes_runtime.node.checkpoint_files.piece_index import (
    INDEX_VERSION,
    DamagedPiece,
    PieceFile,
    PieceIndex,
    WrittenBox,
    WrittenTensor,
    digest_in,
    digest_of,
    sizes_of,
)
from holmes_runtime.node.checkpoint_files.plain_file import read_plain

METADATA_FILE = ".metadata"  # torch's
MAX_METADATA_BYTES = 1 << 24  # each may become an object once unpickled


def write_pieces(folder: Path, pieces: dict[str, TensorPiece], rank: int) -> tuple[WrittenTensor, ...]:
    """Write the pieces of `rank` to a file in `folder`, which is made. Return their boxes, with digests read back.

    Links in the folder are not written through. Raises what torch's writer raises.
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
    chunks = {(name, chunk.offsets): chunk for name, piece in pieces.items() for chunk, _ in piece.chunks()}
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
    """Write torch's `.metadata`: all boxes, and where they are."""
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


def index_of_old(checkpoint: Path) -> PieceIndex:
    """Return the index of a checkpoint without digests, by torch's `.metadata`. Raise DamagedPiece if it has none."""
    path = checkpoint / METADATA_FILE
    try:
        content, steps = read_plain(path, MAX_METADATA_BYTES), steps_of(checkpoint)
        tensors = tensors_in(content)
        return PieceIndex(INDEX_VERSION, SaveId(digest_of(content)), "", 0, steps, "", files_of(tensors, {}), tensors)
    except (OSError, ValueError) as error:
        raise DamagedPiece(f"{path} does not describe tensors: {error}") from None


def tensors_in(content: bytes) -> tuple[WrittenTensor, ...]:
    """Return the tensors that torch's `.metadata` with this content describes. Raise ValueError if it is none."""
    tensors = []
    try:
        metadata: Metadata = _MetadataUnpickler(io.BytesIO(content)).load()
        for name, saved in metadata.state_dict_metadata.items():
            assert isinstance(saved, TensorStorageMetadata)
            boxes = []
            for number, chunk in enumerate(saved.chunks):
                stored: _StorageInfo = metadata.storage_data[MetadataIndex(name, chunk.offsets, number)]
                box = {
                    "offsets": [*chunk.offsets],
                    "sizes": [*chunk.sizes],
                    "file": stored.relative_path,
                    "first_byte": stored.offset,
                    "size_bytes": stored.length,
                    "digest": "",
                }
                boxes.append(box)
            tensors.append({"name": name, "shape": [*saved.size], "boxes": boxes})
    except Exception as error:  # pickle's documentation leaves open which there are
        raise ValueError(f"it is not torch's: {shown(error)}") from None
    found: tuple[WrittenTensor, ...] = decode(tuple[WrittenTensor, ...], tensors, "tensors")
    return found


def files_of(tensors: Iterable[WrittenTensor], hosts: Mapping[int, tuple[str, ...]]) -> tuple[PieceFile, ...]:
    """Return the files that hold `tensors`, by name; `hosts` are by rank the hosts whose folders get its files."""
    return tuple(
        PieceFile(name, name.rank, size, hosts.get(name.rank, ())) for name, size in sorted(sizes_of(tensors).items())
    )


class _MetadataUnpickler(pickle.Unpickler):
    """The reader of a `.metadata` file. It accepts known records only; torch would run any code in the file."""

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
        """Return one of the records that a metadata file consists of."""
        if global_name not in self.KNOWN.get(module_name, set()):
            raise pickle.UnpicklingError(f"{module_name}.{global_name} has no place in the metadata of a checkpoint")
        return super().find_class(module_name, global_name)
