"""The index of a checkpoint's files, `pieces.json`, with a digest of every box. Free of torch.

One rank writes a piece file. The folder of a host holds some of a checkpoint's files, and the index of all of them. As
records come from files and peers, each one refuses, when it is made, values that no writer produces.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from operator import le, sub
from pathlib import Path
from typing import Any, NamedTuple

from holmes_runtime.config.checks import check, check_counts, shown
from holmes_runtime.config.strict_json import MAX_VALUES, decode, encode, loads, to_json
from holmes_runtime.node.checkpoint_files.checkpoint_names import PieceName, SaveId
from holmes_runtime.node.checkpoint_files.plain_file import open_plain, read_plain

INDEX_FILE = "pieces.json"
INDEX_VERSION = 1
MAX_INDEX_BYTES = 1 << 26  # a rank of a 7B model writes 0.1 MB
DIGEST_BYTES = 16
READ_BYTES = 1 << 18  # at a time for a digest, so that they are still in a cache
MAX_DIMS = 16
MAX_SIZE = 1 << 50  # limit of bytes and of numbers: one PiB
MAX_COUNT = 10**15 - 1  # limit of steps and starts, with as many digits as names of checkpoints
MAX_RANK = 10**7 - 1
VALUE_BYTES = 4  # fp32
MAX_ARCHIVE_BYTES = 1 << 20  # of the archive that torch writes around the numbers of a box, about 1,300 bytes


class DamagedPiece(Exception):
    """A file of a checkpoint is not as it was written. The text names the file."""


@dataclass(frozen=True)
class WrittenBox:
    """A box of a whole tensor, the bytes of the file that hold it, and the `digest` of these bytes.

    `offsets` and `sizes` have one number per dimension.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: PieceName
    first_byte: int
    size_bytes: int
    digest: str

    def __post_init__(self) -> None:
        check_counts(self, MAX_SIZE, "offsets", "sizes", "first_byte", "size_bytes")
        check("offsets", self.offsets, "must be as many as sizes", len(self.offsets) == len(self.sizes))
        around_bytes = self.size_bytes - VALUE_BYTES * math.prod(self.sizes)
        rule = "must be that of a saved box of fp32 numbers of its sizes"
        check("size_bytes", self.size_bytes, rule, 0 <= around_bytes <= MAX_ARCHIVE_BYTES)

    @property
    def end_byte(self) -> int:
        """The position after its last byte in the file."""
        return self.first_byte + self.size_bytes


@dataclass(frozen=True)
class WrittenTensor:
    """The boxes of one tensor that were written, fp32, of `shape`."""

    name: str
    shape: tuple[int, ...]
    boxes: tuple[WrittenBox, ...]

    def __post_init__(self) -> None:
        check_counts(self, MAX_SIZE, "shape")
        check("shape", self.shape, f"must have at most {MAX_DIMS} dimensions", len(self.shape) <= MAX_DIMS)
        rule = f"must be inside of shape {shown(self.shape)}"
        for box in self.boxes:
            check("boxes", box, rule, len(box.sizes) == len(self.shape))
            room = map(sub, self.shape, box.sizes)
            check("boxes", box, rule, all(map(le, box.offsets, room)))


@dataclass(frozen=True)
class PieceFile:
    """A file that `rank` wrote, and the hosts whose folders hold it."""

    name: PieceName
    rank: int
    size_bytes: int
    hosts: tuple[str, ...]

    def __post_init__(self) -> None:
        check_counts(self, 2 * MAX_SIZE, "size_bytes")
        check("rank", self.rank, f"must be the rank that {self.name} names", self.rank == self.name.rank)


@dataclass(frozen=True)
class PieceIndex:
    """All files and tensors of one checkpoint.

    `save_id` is unique to this save, so files of two saves never mix. `begun_by` is the run that began at step 0.
    `generation` is the number of starts of that run up to this save, which orders saves without clocks.
    """

    format_version: int
    save_id: SaveId
    begun_by: str
    generation: int
    steps: int
    description_digest: str
    files: tuple[PieceFile, ...]
    tensors: tuple[WrittenTensor, ...]

    def __post_init__(self) -> None:
        check("format_version", self.format_version, f"must be {INDEX_VERSION}", self.format_version == INDEX_VERSION)
        check_counts(self, MAX_COUNT, "generation", "steps")
        said = sorted((file.name, file.size_bytes) for file in self.files)
        described = sorted(sizes_of(self.tensors).items())
        check("files", said, "must be those that hold the tensors, with their sizes", said == described)


def sizes_of(tensors: Iterable[WrittenTensor]) -> dict[PieceName, int]:
    """Return the bytes of each file that holds boxes of `tensors`."""
    sizes: dict[PieceName, int] = {}
    for tensor in tensors:
        for box in tensor.boxes:
            sizes[box.file] = max(sizes.get(box.file, 0), box.end_byte)
    return sizes


class Written(NamedTuple):
    """The tensors that one rank wrote, or the reason why it could not write them."""

    tensors: tuple[WrittenTensor, ...]
    trouble: str | None


class Merged(NamedTuple):
    """The index of all ranks' tensors, for folders that need it, or why there is none. `save_id` is the index's."""

    save_id: SaveId | None
    pieces: PieceIndex | None
    trouble: str | None


class ReadIndex(NamedTuple):
    """The index and description of a checkpoint, or the reason why they cannot be read."""

    pieces: PieceIndex | None
    description: str
    fault: str | None


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """Return the digest of these bytes, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def digest_in(path: Path, first_byte: int, size_bytes: int) -> str:
    """Return the digest of `size_bytes` of a file from `first_byte` on.

    Raises:
        DamagedPiece: the file has fewer bytes; the message names it.
    """
    digest, chunk, left_bytes = hashlib.blake2b(digest_size=DIGEST_BYTES), memoryview(bytearray(READ_BYTES)), size_bytes
    with open_plain(path) as file:
        file.seek(first_byte)
        while left_bytes:
            found = file.readinto(chunk[:left_bytes])
            if not found:
                raise DamagedPiece(f"{path.name} lacks the last {left_bytes} bytes that were written")
            digest.update(chunk[:found])
            left_bytes -= found
    return digest.hexdigest()


def index_text(index: PieceIndex) -> str:
    """Return the text of `pieces.json`, which begins with a digest of the rest."""
    digest = digest_of(to_json(index).encode())
    return json.dumps({"digest": digest, "index": encode(PieceIndex, index)}) + "\n"


def read_index(checkpoint: Path) -> PieceIndex:
    """Return the index of a checkpoint. Raises DamagedPiece if there is none, or if it is not as it was written."""
    path = checkpoint / INDEX_FILE
    try:
        said: Any = loads(read_plain(path, MAX_INDEX_BYTES).decode(), MAX_VALUES)
        version = said["index"]["format_version"]
        if version != INDEX_VERSION:
            raise DamagedPiece(f"{path}: format_version {shown(version)}, this Holmes reads {INDEX_VERSION}")
        index: PieceIndex = decode(PieceIndex, said["index"], "index")
        is_whole = said["digest"] == digest_of(to_json(index).encode())
    except FileNotFoundError:
        raise DamagedPiece(f"{path} is missing: {checkpoint} is no checkpoint, or from before Holmes 0.1.0") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedPiece(f"{path} is not as it was written: {error}") from None
    if not is_whole:
        raise DamagedPiece(f"{path} is not as it was written: its digest is another")
    return index


def lacks(checkpoint: Path, file: PieceFile) -> str | None:
    """Return why the folder lacks the file, judged by its size; None if the folder has it."""
    path = checkpoint / file.name
    try:
        with open_plain(path) as opened:
            size_bytes = os.fstat(opened.fileno()).st_size
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None if size_bytes >= file.size_bytes else f"{path} has {size_bytes} of {file.size_bytes} bytes"


def read_box(checkpoint: Path, box: WrittenBox, is_checked: bool = True) -> bytearray:
    """Return the bytes of a box. Raises DamagedPiece naming the file if they are not as written.

    Unless it `is_checked`, only their number is compared. Bytes that the file does not have take no memory.
    """
    try:
        with open_plain(checkpoint / box.file) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes < box.end_byte:
                raise DamagedPiece(f"{box.file} has only {size_bytes} of the bytes that were written")
            data, found = bytearray(box.size_bytes), 0
            file.seek(box.first_byte)
            while found < box.size_bytes:
                read = file.readinto(memoryview(data)[found:])
                if not read:
                    raise DamagedPiece(f"{box.file} has become shorter")
                found += read
    except OSError as error:
        raise DamagedPiece(f"{box.file} cannot be read: {error.strerror}") from None
    if is_checked:
        check_box(data, box)
    return data


def check_box(data: bytearray, box: WrittenBox) -> None:
    """Raise DamagedPiece naming the file unless `data` is what was written as `box`."""
    if digest_of(data) != box.digest:
        raise DamagedPiece(_changed(box))


def _changed(box: WrittenBox) -> str:
    return f"{box.file}: bytes {box.first_byte} to {box.end_byte - 1} are not those that were written"


def damage_in(checkpoint: Path, index: PieceIndex, name: str) -> str | None:
    """Read all bytes of the file `name` in the folder and return its fault; None if it has none."""
    file = next(file for file in index.files if file.name == name)
    fault = lacks(checkpoint, file)
    if fault is not None:
        return fault
    for box in (box for tensor in index.tensors for box in tensor.boxes if box.file == name):
        try:
            digest = digest_in(checkpoint / box.file, box.first_byte, box.size_bytes)
        except DamagedPiece as error:
            return f"{checkpoint}/{error}"
        except OSError as error:
            return f"{checkpoint / name} cannot be read: {error.strerror}"
        if digest != box.digest:
            return f"{checkpoint}/{_changed(box)}"
    return None
