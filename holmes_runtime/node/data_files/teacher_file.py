"""The highest logits of a teacher for the tokens of a token file: TOKENS.teacher, in the folder of TOKENS.bin.

Free of torch. Little endian: the header, then a row for each target of each whole sequence of the token file, in order.
A row is the `top` likeliest tokens (uint16, or int32 where the teacher's vocabulary is larger), then the logarithm of
the probability of each (float16). The `digest` is of the token file: see `digest_of`.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from holmes_runtime.node.data_files.stored_bytes import FileBytes, digest_of
from holmes_runtime.node.data_files.token_file import TokenFile

SUFFIX = ".teacher"
MAGIC = b"HOLMESTE"
HEADER = struct.Struct("<8sqqqqq32s")  # magic, version, sequences, seq_length, top, vocab_size, digest
VERSION = 1
SMALL_VOCABULARY = 2**16  # whose tokens are uint16
LOG_PROBABILITY_BYTES = 2
MAX_TOP = 1024
PADDING = 1024  # entries by which a published vocabulary may exceed another of the same tokens


@dataclass(frozen=True)
class TeacherFile:
    """The description of a teacher's file by its header."""

    path: Path
    num_sequences: int
    seq_length: int
    top: int
    vocab_size: int
    digest: bytes

    @property
    def token_bytes(self) -> int:
        """The bytes of a token in a row."""
        return 2 if self.vocab_size <= SMALL_VOCABULARY else 4

    @property
    def row_bytes(self) -> int:
        """The bytes of the entries of one target."""
        return self.top * (self.token_bytes + LOG_PROBABILITY_BYTES)

    @property
    def size_bytes(self) -> int:
        """The bytes of the whole file."""
        return HEADER.size + self.num_sequences * self.seq_length * self.row_bytes

    def header(self) -> bytes:
        """Return the bytes that the file begins with."""
        numbers = self.num_sequences, self.seq_length, self.top, self.vocab_size
        return HEADER.pack(MAGIC, VERSION, *numbers, self.digest)


def teacher_path(tokens: Path) -> Path:
    """Return the path of the teacher's file of token file `tokens`."""
    return tokens.with_suffix(SUFFIX)


def read_teacher(tokens: TokenFile, seq_length: int | None = None, vocab_size: int | None = None) -> TeacherFile:
    """Return the description of the teacher's file of `tokens`, for a model of this length and vocabulary, if known.

    Raises:
        ValueError: there is none, it is not whole, or it is of other sequences or another vocabulary.
        OSError: it cannot be read.
    """
    path = teacher_path(tokens.path)
    again = f"run `holmes data {tokens.path} --teacher FOLDER`"
    if not path.is_file():
        raise ValueError(f"{tokens.path} has no logits of a teacher: {path} is missing; {again}")
    with open(path, "rb") as file:
        head, found_bytes = file.read(HEADER.size), os.fstat(file.fileno()).st_size
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        raise ValueError(f"{path} does not hold logits of a teacher: it begins with {head[:8]!r}")
    _, version, num_sequences, length, top, teacher_vocab, digest = HEADER.unpack(head)
    if version != VERSION or min(num_sequences, length, top) < 1 or not top <= min(teacher_vocab, MAX_TOP):
        raise ValueError(
            f"{path}: version {version} with {num_sequences} sequences of {length} tokens and the highest {top} of "
            f"{teacher_vocab} logits; known is version {VERSION}, with 1 to {MAX_TOP}"
        )
    teacher = TeacherFile(path, num_sequences, length, top, teacher_vocab, digest)
    if found_bytes != teacher.size_bytes:
        raise ValueError(
            f"{path} has {found_bytes} bytes, its header says {teacher.size_bytes}; remove it, and {again}"
        )
    if seq_length not in (None, teacher.seq_length):
        raise ValueError(
            f"{path} has logits for sequences of {teacher.seq_length} tokens, and model.seq_length is {seq_length}: "
            f"set it to {teacher.seq_length}, or remove the file, and {again} --seq-length {seq_length}"
        )
    if teacher.num_sequences != (tokens.num_tokens - 1) // teacher.seq_length:
        raise ValueError(
            f"{path} has logits for {teacher.num_sequences} sequences of {teacher.seq_length} tokens, and "
            f"{tokens.path} has {tokens.num_tokens} tokens: remove it, and {again}"
        )
    if digest.hex() != digest_of([FileBytes(tokens.path)]):
        raise ValueError(
            f"{path} has the logits of a teacher for other tokens than {tokens.path} has now: remove it, and {again}"
        )
    if vocab_size is not None and teacher.vocab_size > vocab_size + PADDING:
        raise ValueError(
            f"{path} is of a teacher with {teacher.vocab_size} tokens, and model.vocab_size is {vocab_size}: a teacher "
            "has the model's own tokens"
        )
    return teacher


class TeacherRows:
    """The rows of a teacher's file, read from disk as they are needed."""

    def __init__(self, teacher: TeacherFile) -> None:
        self.file, self.stored = teacher, FileBytes(teacher.path)

    def read(self, start: int, stop: int) -> bytearray:
        """Return the rows of targets [start, stop) of the file."""
        row_bytes = self.file.row_bytes
        return self.stored.read(HEADER.size + start * row_bytes, HEADER.size + stop * row_bytes)


class TeacherFileWriter:
    """Writes a teacher's file; it appears, whole, when the `with` block ends without an error.

    Until then it is a temporary file in the same folder, which an error or an interruption removes.
    """

    def __init__(self, teacher: TeacherFile) -> None:
        self._teacher = teacher
        self._temporary = teacher.path.with_name(f".{teacher.path.name}.{os.getpid()}")

    def add(self, rows: bytes) -> None:
        """Append rows."""
        self._file.write(rows)

    def __enter__(self) -> TeacherFileWriter:
        self._file = open(self._temporary, "wb")
        self._file.write(self._teacher.header())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._file.flush()
                os.fsync(self._file.fileno())
                written = self._file.tell()
                assert written == self._teacher.size_bytes, (written, self._teacher.size_bytes)
                self._temporary.replace(self._teacher.path)
        finally:
            self._temporary.unlink(missing_ok=True)
            self._file.close()
