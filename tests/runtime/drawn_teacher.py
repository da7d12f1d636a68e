"""A teacher that knows nothing: drawn logits for the tokens of a token file."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from holmes_runtime.node.data_files.stored_bytes import FileBytes, digest_of
from holmes_runtime.node.data_files.teacher_file import TeacherFile, TeacherFileWriter, teacher_path
from holmes_runtime.node.data_files.token_file import read_index


def write_logits(tokens: Path, seq_length: int, top: int, vocab_size: int, seed: int = 3) -> TeacherFile:
    """Write a teacher's file beside a token file; return its description. Rows are as its docstring says."""
    drawn = random.Random(seed)
    digest = bytes.fromhex(digest_of([FileBytes(tokens)]))
    num_sequences = (read_index(tokens).num_tokens - 1) // seq_length
    file = TeacherFile(teacher_path(tokens), num_sequences, seq_length, top, vocab_size, digest)
    with TeacherFileWriter(file) as writer:
        for _ in range(num_sequences * seq_length):
            likeliest = drawn.sample(range(vocab_size), top)
            logarithms = sorted((drawn.uniform(-6, -0.5) for _ in range(top)), reverse=True)
            code = "H" if vocab_size <= 2**16 else "i"
            writer.add(struct.pack(f"<{top}{code}{top}e", *likeliest, *logarithms))
    return file
