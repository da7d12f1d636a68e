"""Megatron's token files: OUT.bin holds the tokens of all documents in sequence, OUT.idx the start of each.

Free of torch. The index, little endian: magic, uint64 version 1, uint8 code of the token type, uint64 number of
sequences n, uint64 number of document marks m, int32[n] tokens of each sequence, int64[n] first byte of each in the
.bin, int64[m] marks: document i is the sequences [mark i, mark i + 1). After that, where other readers stop, an index
written by Holmes has the largest of all tokens: LARGEST_MAGIC, int64. For packed examples the length of their sequences
follows: PACKED_MAGIC, int64. Their tokens that are only read, not predicted, are stored as bitwise complements.
Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, overload

from holmes_runtime.node.data_files.stored_bytes import FileBytes
from holmes_runtime.node.data_files.whole_file import whole_file

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<QBQQ")  # version, code of the token type, sequences, document marks
LARGEST_MAGIC = b"HOLMESMX"
PACKED_MAGIC = b"HOLMESPK"
NOTE = struct.Struct("<8sq")  # one of these two magics, and its number
TYPE_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}  # 6 and 7 are not integers
TYPE_BYTES = {"uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2}
ARRAY_TYPES = {"uint8": "B", "uint16": "H", "int32": "i"}  # the types written, with their codes in Python's `array`
UINT16_VOCABULARY = 65500  # Megatron-LM's own limit for tokens of two bytes
LONGEST_SEQUENCE = 2**31 - 1  # the length is an int32


@dataclass(frozen=True)
class TokenFile:
    """The description of a token file from its index. `largest_token` is None if the index lacks it.

    `packed_length` is the number of tokens in a sequence of packed examples; None if the file has none.
    """

    path: Path
    token_type: str
    num_tokens: int
    num_sequences: int
    num_marks: int
    largest_token: int | None
    packed_length: int | None = None

    @property
    def first_pointer(self) -> int:
        """The position in the index of the sequences' pointers."""
        return len(MAGIC) + HEADER.size + 4 * self.num_sequences

    @property
    def first_mark(self) -> int:
        """The position in the index of the documents' marks."""
        return self.first_pointer + 8 * self.num_sequences


class DocumentStarts(Sequence[int]):
    """The first token of each document of a token file, ascending, looked up in its index, which stays on disk."""

    def __init__(self, tokens: TokenFile) -> None:
        self._tokens, self.index_file = tokens, FileBytes(index_path(tokens.path))

    def __len__(self) -> int:
        return max(0, self._tokens.num_marks - 1)  # the last mark is the end of the last document

    @overload
    def __getitem__(self, document: int) -> int: ...
    @overload
    def __getitem__(self, document: slice) -> Sequence[int]: ...
    def __getitem__(self, document: int | slice) -> int | Sequence[int]:
        """Return the first token of a document. Raises ValueError naming the index for a mark without a sequence."""
        if isinstance(document, slice):
            return [self[each] for each in range(*document.indices(len(self)))]
        if not 0 <= document < len(self):
            raise IndexError(document)
        tokens = self._tokens
        sequence = self._number(tokens.first_mark + 8 * document)
        if not 0 <= sequence <= tokens.num_sequences:
            raise ValueError(
                f"{self.index_file.path}: document {document} begins with sequence {sequence} of {tokens.num_sequences}"
            )
        if sequence == tokens.num_sequences:
            return tokens.num_tokens
        first = self._number(tokens.first_pointer + 8 * sequence) // TYPE_BYTES[tokens.token_type]
        if not 0 <= first <= tokens.num_tokens:
            raise ValueError(
                f"{self.index_file.path}: document {document} begins at token {first} of {tokens.num_tokens}"
            )
        return first

    def _number(self, first_byte: int) -> int:
        return int.from_bytes(self.index_file.read(first_byte, first_byte + 8), "little", signed=True)


def token_type_of(vocab_size: int) -> str:
    """Return the smallest type that can hold the tokens of a vocabulary."""
    if vocab_size <= 2**8:
        return "uint8"
    return "uint16" if vocab_size < UINT16_VOCABULARY else "int32"


def index_path(path: Path) -> Path:
    """Return the path of the index of token file `path`."""
    return path.with_suffix(".idx")


def read_index(path: Path) -> TokenFile:
    """Return the description of the token file `path`. Raises ValueError or OSError naming it if it is incomplete."""
    index = index_path(path)
    if not index.is_file():
        raise ValueError(f"{path} has no index: {index} is missing")
    with open(index, "rb") as file:
        head = file.read(len(MAGIC) + HEADER.size)
        if len(head) < len(MAGIC) + HEADER.size or not head.startswith(MAGIC):
            raise ValueError(f"{index} is not an index of Megatron tokens: it begins with {head[:9]!r}")
        version, code, sequences, marks = HEADER.unpack_from(head, len(MAGIC))
        if version != 1 or code not in TYPE_CODES:
            raise ValueError(f"{index}: version {version} with token type {code}; known is version 1 with {TYPE_CODES}")
        least_bytes = len(head) + 12 * sequences + 8 * marks
        if os.fstat(file.fileno()).st_size < least_bytes:
            raise ValueError(f"{index} ends early: {sequences} sequences and {marks} marks take {least_bytes} bytes")
        num_tokens = 0
        if sequences:
            # The last sequence ends where the tokens end, so a long index need not be read.
            file.seek(len(head) + 4 * (sequences - 1))
            (last_length,) = struct.unpack("<i", file.read(4))
            file.seek(len(head) + 4 * sequences + 8 * (sequences - 1))
            (last_byte,) = struct.unpack("<q", file.read(8))
            num_tokens = last_byte // TYPE_BYTES[TYPE_CODES[code]] + last_length
        file.seek(least_bytes)
        largest, packed_length = _note(file, LARGEST_MAGIC), _note(file, PACKED_MAGIC)
    expected_bytes, found_bytes = num_tokens * TYPE_BYTES[TYPE_CODES[code]], path.stat().st_size
    if found_bytes != expected_bytes:
        raise ValueError(f"{path} has {found_bytes} bytes, but its index {index} says {expected_bytes}")
    if packed_length is not None and (packed_length < 1 or num_tokens % packed_length != 1 % packed_length):
        raise ValueError(f"{index}: {num_tokens} tokens are not packed in sequences of {packed_length}")
    return TokenFile(path, TYPE_CODES[code], num_tokens, sequences, marks, largest, packed_length)


def _note(file: BinaryIO, magic: bytes) -> int | None:
    """Return the number of the next note of an index; None if the next note is another one or missing."""
    start = file.tell()
    rest = file.read(NOTE.size)
    if len(rest) == NOTE.size and rest.startswith(magic):
        number: int = NOTE.unpack(rest)[1]
        return number
    file.seek(start)
    return None


class TokenFileWriter:
    """Writes OUT.bin and OUT.idx, which appear complete when the `with` block ends without an error.

    Until then they are temporary files: see `whole_file`.
    """

    def __init__(
        self,
        path: Path,
        token_type: str,
        longest_sequence: int = LONGEST_SEQUENCE,
        packed_length: int | None = None,
    ) -> None:
        """`packed_length` is the number of tokens in a sequence of packed examples, whose type is int32."""
        self._path, self._packed_length = path, packed_length
        self._longest_sequence = longest_sequence
        self._token_type = token_type
        self._lengths, self._marks = array("i"), array("q", [0])
        self._open_length = 0
        self.num_tokens, self.largest_token = 0, -1  # -1: no token yet

    @property
    def num_documents(self) -> int:
        """The number of documents ended so far."""
        return len(self._marks) - 1

    def add(self, tokens: Iterable[int]) -> None:
        """Append tokens to the current document. Raises OverflowError for one that the type cannot hold."""
        data = array(ARRAY_TYPES[self._token_type], tokens)
        self._file.write(data.tobytes())
        self.largest_token = max(self.largest_token, max(data, default=-1), ~min(data, default=0))
        self.num_tokens += len(data)
        self._open_length += len(data)

    def end_document(self) -> None:
        """End the current document. A document without tokens leaves no trace."""
        if self._open_length == 0:
            return
        while self._open_length > 0:
            self._lengths.append(min(self._open_length, self._longest_sequence))
            self._open_length -= self._lengths[-1]
        self._marks.append(len(self._lengths))

    def __enter__(self) -> TokenFileWriter:
        with ExitStack() as files:
            self._index = files.enter_context(whole_file(index_path(self._path)))  # named last: it makes the file valid
            self._file = files.enter_context(whole_file(self._path))
            self._files = files.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._files.__exit__(kind, error, trace)
            return
        with self._files:
            self.end_document()
            self._write_index(self._index)
            for file in self._file, self._index:  # a disk that is full is noticed before either has its name
                file.flush()
                os.fsync(file.fileno())

    def _write_index(self, file: BinaryIO) -> None:
        code = next(code for code, name in TYPE_CODES.items() if name == self._token_type)
        file.write(MAGIC + HEADER.pack(1, code, len(self._lengths), len(self._marks)))
        self._lengths.tofile(file)
        position, pointers = 0, array("q")
        for length in self._lengths:
            pointers.append(position)
            position += length * TYPE_BYTES[self._token_type]
        pointers.tofile(file)
        self._marks.tofile(file)
        file.write(NOTE.pack(LARGEST_MAGIC, self.largest_token))
        if self._packed_length is not None:
            file.write(NOTE.pack(PACKED_MAGIC, self._packed_length))
