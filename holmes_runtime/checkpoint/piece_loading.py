"""Read a rank's pieces from a checkpoint: from the folder its host sees, and from peers if that folder lacks them."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from holmes_runtime.checkpoint.host_folders import HostFolders
from holmes_runtime.checkpoint.piece_files import saved_chunks
from holmes_runtime.checkpoint.piece_transfer import Incoming, OutgoingPiece, TransferPace, exchange
from holmes_runtime.checkpoint.tensor_piece import TensorPiece
from holmes_runtime.comm.record_exchange import all_gather_records
from holmes_runtime.config.checks import check, check_counts
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.strict_json import MAX_VALUES
from holmes_runtime.node.checkpoint_files.checkpoint_names import PieceName
from holmes_runtime.node.checkpoint_files.piece_index import (
    MAX_RANK,
    DamagedPiece,
    PieceIndex,
    WrittenBox,
    WrittenTensor,
    check_box,
    read_box,
)

STORAGE = "/data/0"  # the one tensor in an archive of torch.save
ZEROS = memoryview(bytes(1 << 20))  # sent in place of bytes that cannot be read


@dataclass(frozen=True)
class Request:
    """The boxes that a rank requests from rank `provider`: their numbers in the index, in order, each once."""

    provider: int
    boxes: tuple[int, ...]

    def __post_init__(self) -> None:
        check_counts(self, MAX_RANK, "provider")
        check_counts(self, MAX_VALUES, "boxes")
        is_in_order = all(before < after for before, after in pairwise(self.boxes))
        check("boxes", self.boxes, "must be each once and in order", is_in_order)


class PieceRequests(NamedTuple):
    """The requests of a rank in one round. `fault` is why it cannot continue. `damage` lists damaged files it found."""

    requests: tuple[Request, ...]
    fault: str | None
    damage: tuple[str, ...]


class OwnFiles(NamedTuple):
    """The folder `checkpoint` of a save, as a rank sees it, and by name the files that the host also has in memory."""

    checkpoint: Path
    in_memory: Mapping[str, Path]

    def remembered(self, box: WrittenBox) -> bytearray | None:
        """Return the bytes of a box from memory, if they are as written; None if they are missing or differ."""
        folder = self.in_memory.get(box.file)
        try:
            return None if folder is None else read_box(folder, box)
        except DamagedPiece:
            return None


class PieceLoading:
    """Loads the `pieces` of one rank from the checkpoint `index`. `holders` are, by file, the folders that have it.

    `places` name the checkpoint in each folder, such as `host a1: /saved/step-00000100`. `own` are its files here.
    """

    def __init__(
        self,
        index: PieceIndex,
        pieces: Mapping[str, TensorPiece],
        own: OwnFiles,
        holders: Mapping[PieceName, tuple[int, ...]],
        places: Sequence[str],
        folders: HostFolders,
        me: Rank,
    ) -> None:
        self._pieces, self._files, self._places = pieces, own, places
        self._folders, self._me, self._own = folders, me, folders.number(me.rank)
        self._boxes = [box for tensor in index.tensors for box in tensor.boxes]
        self._items: dict[int, list[tuple[str, ReadItem]]] = {}  # by box, the slices to read and their targets
        self._other_model = self._find_items(index)
        self._sources = {number: self._in_order(holders[self._boxes[number].file]) for number in self._items}
        self._damage: list[str] = []  # sentences

    def _find_items(self, index: PieceIndex) -> str | None:
        """Record the slices of boxes that fill the pieces. Return why the checkpoint is for another model, if it is."""
        first_box = 0
        saved: dict[str, tuple[WrittenTensor, int]] = {}
        for tensor in index.tensors:
            saved[tensor.name] = (tensor, first_box)
            first_box += len(tensor.boxes)
        for name, piece in self._pieces.items():
            shape = piece.part.global_shape
            if name not in saved or saved[name][0].shape != shape:
                found = f"has the shape {saved[name][0].shape}" if name in saved else "is missing"
                return f"{name} {found}, this run has it with the shape {shape}"
            tensor, first_box = saved[name]
            for item in read_items(tensor, piece):
                assert item.storage_index.index is not None
                self._items.setdefault(first_box + item.storage_index.index, []).append((name, item))
        return None

    def _in_order(self, holders: tuple[int, ...]) -> list[int]:
        """Return `holders`, the rank's own folder first, then its cluster's. Different ranks begin with others."""

        def farther(number: int) -> tuple[bool, bool, int]:
            turn = (number + self._me.rank) % len(self._places)
            return number != self._own, self._me.cluster not in self._folders.clusters_at(number), turn

        return sorted(holders, key=farther)

    def load(self, group: ProcessGroup) -> tuple[str | None, list[str]]:
        """Load all pieces. Return what ranks could not get (None if nothing), and a sentence on each damaged file.

        All ranks call this and return the same.
        """
        reported: dict[str, None] = {}
        while True:
            self._read_own()
            wanted = all_gather_records(PieceRequests(self._requests(), self._fault(), tuple(self._damage)), group)
            reported.update((sentence, None) for each in wanted for sentence in each.damage)
            faults = [f"rank {rank}: {each.fault}" for rank, each in enumerate(wanted) if each.fault is not None]
            if faults:
                return "; ".join(faults), list(reported)
            if not any(each.requests for each in wanted):
                return None, list(reported)
            self._exchange(wanted, group)

    def _fault(self) -> str | None:
        """Return why the rank cannot continue, None if it can."""
        if self._other_model is not None:
            return self._other_model
        gone = [self._boxes[number].file for number, sources in self._sources.items() if not sources]
        return f"no folder has {gone[0]} as it was written: {'; '.join(self._damage)}" if gone else None

    def _read_own(self) -> None:
        """Read the boxes in the rank's own folder. A box that is damaged there is requested elsewhere."""
        for number in [number for number, sources in self._sources.items() if sources[:1] == [self._own]]:
            box = self._boxes[number]
            try:
                data = self._files.remembered(box)  # as it was written; otherwise from disks
                self._put(number, read_box(self._files.checkpoint, box) if data is None else data)
            except DamagedPiece as error:
                self._is_damaged(number, str(error))

    def _put(self, number: int, data: bytearray) -> None:
        """Copy a checked box into the pieces. Raises DamagedPiece if its bytes are not a tensor."""
        values = values_of(data, self._boxes[number])
        for name, item in self._items[number]:
            target = self._pieces[name].chunk_at(item.dest_index.offset)
            target[_slices(item.dest_offsets, item.lengths)].copy_(values[_slices(item.storage_offsets, item.lengths)])
        del self._sources[number]

    def _is_damaged(self, number: int, why: str) -> None:
        """Record the damage, and take the box from the next folder."""
        place = self._places[self._sources[number].pop(0)]
        self._damage.append(f"{place}/{why}")

    def _requests(self) -> tuple[Request, ...]:
        """Return the requests for boxes that others have. The ranks that see a folder share the work."""
        by_provider: dict[int, list[int]] = {}
        for number, sources in sorted(self._sources.items()):
            if sources:
                there = self._folders.ranks_at(sources[0])
                by_provider.setdefault(there[self._me.rank % len(there)], []).append(number)
        return tuple(Request(provider, tuple(boxes)) for provider, boxes in sorted(by_provider.items()))

    def _exchange(self, wanted: Sequence[PieceRequests], group: ProcessGroup) -> None:
        """Send and receive the boxes that all ranks request."""
        mine = wanted[self._me.rank].requests
        for rank, each in enumerate(wanted):
            self._check(rank, each.requests)
        incoming = [
            Incoming(each.provider, self._size_bytes(each), _SliceWriter(self, each.boxes).take) for each in mine
        ]
        outgoing = [
            OutgoingPiece(rank, self._size_bytes(request), _SliceReader(self, request.boxes).fill)
            for rank, each in enumerate(wanted)
            for request in each.requests
            if request.provider == self._me.rank
        ]
        exchange(outgoing, incoming, group, TransferPace())

    def _check(self, rank: int, requests: Sequence[Request]) -> None:
        """Raise RuntimeError if a rank requests boxes that the index does not have."""
        for request in requests:
            if request.boxes and request.boxes[-1] >= len(self._boxes):
                last, there = request.boxes[-1], len(self._boxes)
                raise RuntimeError(f"rank {rank} asks for box {last} of a checkpoint that has {there}")

    def _size_bytes(self, request: Request) -> int:
        return sum(self._boxes[number].size_bytes for number in request.boxes)

    def bytes_of(self, number: int) -> Iterator[memoryview]:
        """Yield a box of the rank's own folder; zeros if it cannot be read, so that the peer finds it damaged."""
        box = self._boxes[number]
        data = self._files.remembered(box)
        try:
            yield memoryview(read_box(self._files.checkpoint, box, is_checked=False) if data is None else data)
        except DamagedPiece:
            for first in range(0, box.size_bytes, len(ZEROS)):
                yield ZEROS[: box.size_bytes - first]

    def size_bytes_of(self, number: int) -> int:
        """Return the size of a box in bytes."""
        return self._boxes[number].size_bytes

    def take_box(self, number: int, data: bytearray) -> None:
        """Take a box that a peer sent."""
        try:
            check_box(data, self._boxes[number])
            self._put(number, data)
        except DamagedPiece as error:
            self._is_damaged(number, str(error))


class _SliceReader:
    """Reads the bytes of boxes one after another, each box when its turn comes."""

    def __init__(self, loading: PieceLoading, boxes: Sequence[int]) -> None:
        self._chunks = (chunk for number in boxes for chunk in loading.bytes_of(number))
        self._left = memoryview(b"")

    def fill(self, target: memoryview) -> None:
        while target:
            if not self._left:
                self._left = next(self._chunks)
            size = min(len(target), len(self._left))
            target[:size] = self._left[:size]
            target, self._left = target[size:], self._left[size:]


class _SliceWriter:
    """Assembles boxes, one after another, from the bytes that arrive."""

    def __init__(self, loading: PieceLoading, boxes: Sequence[int]) -> None:
        self._loading, self._boxes, self._data = loading, list(boxes), bytearray()

    def take(self, source: memoryview) -> None:
        while source:
            wanted = self._loading.size_bytes_of(self._boxes[0]) - len(self._data)
            self._data += source[:wanted]
            source = source[wanted:]
            if len(self._data) == self._loading.size_bytes_of(self._boxes[0]):
                self._loading.take_box(self._boxes.pop(0), self._data)
                self._data = bytearray()


def read_items(tensor: WrittenTensor, piece: TensorPiece) -> list[ReadItem]:
    """Return the slices of the boxes of `tensor`, by their index in it, that fill the piece's boxes."""
    chunks = [ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)) for box in tensor.boxes]
    saved = TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size(tensor.shape), chunks)
    return create_read_items_for_chunk_list(tensor.name, saved, saved_chunks(piece))


def values_of(data: bytearray, box: WrittenBox) -> Tensor:
    """Return the fp32 tensor that torch.save wrote, from the bytes in the archive: data from peers is not unpickled.

    Raises DamagedPiece if the archive holds no such tensor.
    """
    wanted_bytes = 4 * math.prod(box.sizes)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            (entry,) = (each for each in archive.infolist() if each.filename.endswith(STORAGE))
            if entry.file_size != wanted_bytes:
                raise ValueError(f"{entry.file_size} bytes of numbers, where {wanted_bytes} are described")
            numbers = bytearray(archive.read(entry))
    except (ValueError, RuntimeError, OSError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedPiece(f"{box.file}: no tensor at byte {box.first_byte}: {error!r}") from None
    values = torch.frombuffer(numbers, dtype=torch.float32) if numbers else torch.empty(0)
    return values.reshape(box.sizes)


def _slices(offsets: torch.Size, lengths: torch.Size) -> tuple[slice, ...]:
    return tuple(slice(offset, offset + length) for offset, length in zip(offsets, lengths, strict=True))
