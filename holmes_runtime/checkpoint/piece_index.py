"""What a checkpoint's files hold: `pieces.json` beside them, with a digest of every box. Free of torch.

A piece file is written by one rank. The folder of a host holds some of a checkpoint's files, and the index of all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from holmes_runtime.config.strict_json import decode, encode, to_json

INDEX_FILE = "pieces.json"
INDEX_VERSION = 1
DIGEST_BYTES = 16
READ_BYTES = 1 << 18  # at a time for a digest, so that they are in a cache when it is made


class DamagedPiece(Exception):
    """A file of a checkpoint is not as it was written; the text names the file."""


class WrittenBox(NamedTuple):
    """A box of a whole tensor, and the bytes of the file that hold it. `offsets` and `sizes` have a number a dim.

    `digest` is of those bytes; empty in a checkpoint from before there were digests.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    first_byte: int
    size_bytes: int
    digest: str


class WrittenTensor(NamedTuple):
    """What was written of one tensor, fp32 of `shape`."""

    name: str
    shape: tuple[int, ...]
    boxes: tuple[WrittenBox, ...]


class PieceFile(NamedTuple):
    """A file that `rank` wrote, and the hosts whose folders it was put into."""

    name: str
    rank: int
    size_bytes: int
    hosts: tuple[str, ...]


class PieceIndex(NamedTuple):
    """All files and tensors of one checkpoint.

    `save_id`: of this save alone, so that files of two never mix. `begun_by`: the run that began at step 0, empty where
    that is not known. `generation`: how often that was started when this was saved, which orders saves without clocks.
    """

    format_version: int
    save_id: str
    begun_by: str
    generation: int
    steps: int
    description_digest: str
    files: tuple[PieceFile, ...]
    tensors: tuple[WrittenTensor, ...]


class Written(NamedTuple):
    """What one rank wrote, or why it could not."""

    tensors: tuple[WrittenTensor, ...]
    trouble: str | None


class Merged(NamedTuple):
    """What all ranks wrote, where there are folders that need it, or why not. `save_id`: as in the index."""

    save_id: str
    pieces: PieceIndex | None
    trouble: str | None


class Described(NamedTuple):
    """A checkpoint's own words, or why they cannot be read."""

    pieces: PieceIndex | None
    description: str
    fault: str | None


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """What tells that these bytes have changed, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def digest_in(path: Path, first_byte: int, size_bytes: int) -> str:
    """Of so many bytes of a file, from `first_byte` on. Raises DamagedPiece, naming the file, where it has fewer."""
    digest, chunk, left_bytes = hashlib.blake2b(digest_size=DIGEST_BYTES), memoryview(bytearray(READ_BYTES)), size_bytes
    with open(path, "rb", buffering=0) as file:
        file.seek(first_byte)
        while left_bytes:
            found = file.readinto(chunk[:left_bytes])
            if not found:
                raise DamagedPiece(f"{path.name} ends {left_bytes} bytes before the end of what was written")
            digest.update(chunk[:found])
            left_bytes -= found
    return digest.hexdigest()


def index_text(index: PieceIndex) -> str:
    """The text of `pieces.json`, which begins with a digest of the rest."""
    digest = digest_of(to_json(index).encode())
    return json.dumps({"digest": digest, "index": encode(PieceIndex, index)}) + "\n"


def read_index(checkpoint: Path) -> PieceIndex | None:
    """Of the checkpoint in a folder; None where there is none. Raises DamagedPiece if it is not as it was written."""
    path = checkpoint / INDEX_FILE
    try:
        said: Any = json.loads(path.read_text(encoding="utf-8"))
        version = said["index"]["format_version"]
        if version != INDEX_VERSION:
            raise DamagedPiece(f"{path}: format_version {version}, this Holmes reads {INDEX_VERSION}")
        index: PieceIndex = decode(PieceIndex, said["index"], "index")
        is_whole = said["digest"] == digest_of(to_json(index).encode())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedPiece(f"{path} is not as it was written: {error}") from None
    if not is_whole:
        raise DamagedPiece(f"{path} is not as it was written: its digest is another")
    if any(Path(name).name != name for name in _file_names(index)):
        raise DamagedPiece(f"{path} names a file outside its folder")
    return index


def _file_names(index: PieceIndex) -> Iterator[str]:
    yield from (file.name for file in index.files)
    yield from (box.file for tensor in index.tensors for box in tensor.boxes)


def lacks(checkpoint: Path, file: PieceFile) -> str | None:
    """Why the folder does not hold the file, in words, as far as its size tells; None if it does."""
    path = checkpoint / file.name
    try:
        size_bytes = path.stat().st_size
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None if size_bytes >= file.size_bytes else f"{path} has {size_bytes} of {file.size_bytes} bytes"


def read_box(checkpoint: Path, box: WrittenBox, check: bool = True) -> bytearray:
    """The bytes of a box. Raises DamagedPiece, naming the file, if they are not those that were written.

    Without `check` that is known of their number alone.
    """
    data = bytearray(box.size_bytes)
    try:
        with open(checkpoint / box.file, "rb") as file:
            file.seek(box.first_byte)
            found = file.readinto(data)
    except OSError as error:
        raise DamagedPiece(f"{box.file} cannot be read: {error.strerror}") from None
    if found != box.size_bytes:
        raise DamagedPiece(f"{box.file} ends after {box.first_byte + found} bytes, within what was written")
    if check:
        check_box(data, box)
    return data


def check_box(data: bytearray, box: WrittenBox) -> None:
    """Raises DamagedPiece, naming the file, unless `data` is what was written as `box`."""
    if box.digest and digest_of(data) != box.digest:
        last = box.first_byte + box.size_bytes - 1
        raise DamagedPiece(f"{box.file}: bytes {box.first_byte} to {last} are not those that were written")


def damage_in(checkpoint: Path, index: PieceIndex, name: str) -> str | None:
    """What is wrong with the file `name` of the folder, each of its bytes read; None if nothing is."""
    file = next(file for file in index.files if file.name == name)
    fault = lacks(checkpoint, file)
    if fault is not None:
        return fault
    for tensor in index.tensors:
        for box in tensor.boxes:
            if box.file == name:
                try:
                    read_box(checkpoint, box)
                except DamagedPiece as error:
                    return f"{checkpoint}/{error}"
    return None
