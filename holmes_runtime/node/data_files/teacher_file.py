"""The highest logits of a teacher for the tokens of a token file: TOKENS.teacher, in the folder of TOKENS.bin.

Free of torch. Little endian: the header, then a row for each target of each whole sequence of the token file, in order.
A row has the `top` likeliest tokens (uint16, or int32 if the teacher's vocabulary is larger), and then the logarithm of
each one's probability (float16). The `digest` is that of the token file: see `digest_of`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from holmes_runtime.node.data_files.stored_bytes import FileBytes, digest_of
from holmes_runtime.node.data_files.token_file import TYPE_BYTES, TokenFile
from holmes_runtime.node.data_files.whole_file import whole_file

SUFFIX = ".teacher"
MAGIC = b"HOLMESTE"
HEADER = struct.Struct("<8sqqqqq32s")  # magic, version, sequences, seq_length, top, vocab_size, digest
VERSION = 1
SMALL_VOCABULARY = 2**16  # its tokens are uint16
LOG_PROBABILITY_BYTES = 2
MAX_TOP = 1024
PADDING = 1024  # entries by which a published vocabulary may exceed another with the same tokens


@dataclass(frozen=True)
class TeacherFile:
    """The description of a teacher's file, from its header."""

    path: Path
    num_sequences: int
    seq_length: int
    top: int
    vocab_size: int
    digest: bytes

    @property
    def token_type(self) -> str:
        """The type of a token in a row."""
        return "uint16" if self.vocab_size <= SMALL_VOCABULARY else "int32"

    @property
    def tokens_bytes(self) -> int:
        """The bytes of the tokens of one target, with which its row begins."""
        return self.top * TYPE_BYTES[self.token_type]

    @property
    def row_bytes(self) -> int:
        """The bytes of the entries of one target."""
        return self.tokens_bytes + self.top * LOG_PROBABILITY_BYTES

    @property
    def size_bytes(self) -> int:
        """The bytes of the whole file."""
        return HEADER.size + self.num_sequences * self.seq_length * self.row_bytes

    def header(self) -> bytes:
        """Return the bytes with which the file begins."""
        numbers = self.num_sequences, self.seq_length, self.top, self.vocab_size
        return HEADER.pack(MAGIC, VERSION, *numbers, self.digest)


def teacher_path(tokens: Path) -> Path:
    """Return the path of the teacher's file of token file `tokens`."""
    return tokens.with_suffix(SUFFIX)


def read_teacher(tokens: Path) -> TeacherFile:
    """Return the description of the teacher's file of the token file `tokens`.

    Raises:
        ValueError: there is none, or it is incomplete.
        OSError: it cannot be read.
    """
    path = teacher_path(tokens)
    if not path.is_file():
        raise ValueError(f"{tokens} has no logits of a teacher: {path} is missing; {_again(tokens)}")
    with open(path, "rb") as file:
        head, found_bytes = file.read(HEADER.size), os.fstat(file.fileno()).st_size
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        raise ValueError(f"{path} does not hold logits of a teacher: it begins with {head[:8]!r}")
    _, version, num_sequences, length, top, teacher_vocab, digest = HEADER.unpack(head)
    if version != VERSION or min(num_sequences, length, top) < 1 or not top <= min(teacher_vocab, MAX_TOP):
        raise ValueError(
            f"{path}: version {version} with {num_sequences} sequences of {length} tokens and the highest {top} of "
            f"{teacher_vocab} logits; only version {VERSION} is known, with 1 to {MAX_TOP}"
        )
    teacher = TeacherFile(path, num_sequences, length, top, teacher_vocab, digest)
    if found_bytes != teacher.size_bytes:
        raise ValueError(
            f"{path} has {found_bytes} bytes, but its header says {teacher.size_bytes}; remove it, and {_again(tokens)}"
        )
    return teacher


def check_teacher(tokens: TokenFile, seq_length: int | None, vocab_size: int | None) -> None:
    """Raise ValueError unless the teacher's file of `tokens` matches them, and this length and vocabulary if known.

    Raises as `read_teacher` does.
    """
    teacher, again = read_teacher(tokens.path), _again(tokens.path)
    if seq_length not in (None, teacher.seq_length):
        raise ValueError(
            f"{teacher.path} has logits for sequences of {teacher.seq_length} tokens, but model.seq_length is "
            f"{seq_length}: set it to {teacher.seq_length}, or remove the file, and {again} --seq-length {seq_length}"
        )
    if teacher.num_sequences != (tokens.num_tokens - 1) // teacher.seq_length:
        raise ValueError(
            f"{teacher.path} has logits for {teacher.num_sequences} sequences of {teacher.seq_length} tokens, but "
            f"{tokens.path} has {tokens.num_tokens} tokens: remove it, and {again}"
        )
    if teacher.digest.hex() != digest_of([FileBytes(tokens.path)]):
        raise ValueError(
            f"{teacher.path} has a teacher's logits for other tokens than {tokens.path} has now: remove it, and {again}"
        )
    if vocab_size is not None and teacher.vocab_size > vocab_size + PADDING:
        raise ValueError(
            f"{teacher.path} is of a teacher with {teacher.vocab_size} tokens, but model.vocab_size is {vocab_size}: "
            "the teacher must have the same tokenizer as the model"
        )


def _again(tokens: Path) -> str:
    return f"run `holmes data {tokens} --teacher FOLDER`"


class TeacherRows:
    """The rows of a teacher's file, read from disk when needed."""

    def __init__(self, teacher: TeacherFile) -> None:
        self.file, self.stored = teacher, FileBytes(teacher.path)

    def read(self, start: int, stop: int) -> bytearray:
        """Return the rows of targets [start, stop) of the file."""
        row_bytes = self.file.row_bytes
        return self.stored.read(HEADER.size + start * row_bytes, HEADER.size + stop * row_bytes)


@contextmanager
def written_teacher(teacher: TeacherFile) -> Iterator[BinaryIO]:
    """Open a teacher's file to write its rows after the header; see `whole_file`."""
    with whole_file(teacher.path) as file:
        file.write(teacher.header())
        yield file
        assert file.tell() == teacher.size_bytes, (file.tell(), teacher.size_bytes)
