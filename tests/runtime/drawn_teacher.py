"""A teacher that knows nothing: drawn logits for the tokens of a token file."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from holmes_runtime.node.data_files.stored_bytes import FileBytes, digest_of
from holmes_runtime.node.data_files.teacher_file import TeacherFile, teacher_path, written_teacher
from holmes_runtime.node.data_files.token_file import read_index


def write_logits(tokens: Path, seq_length: int, top: int, vocab_size: int, seed: int = 3) -> TeacherFile:
    """Write the teacher's file of a token file, with drawn rows. Return its description."""
    drawn = random.Random(seed)
    digest = bytes.fromhex(digest_of([FileBytes(tokens)]))
    num_sequences = (read_index(tokens).num_tokens - 1) // seq_length
    file = TeacherFile(teacher_path(tokens), num_sequences, seq_length, top, vocab_size, digest)
    with written_teacher(file) as writer:
        for _ in range(num_sequences * seq_length):
            likeliest = drawn.sample(range(vocab_size), top)
            logarithms = sorted((drawn.uniform(-6, -0.5) for _ in range(top)), reverse=True)
            code = "H" if vocab_size <= 2**16 else "i"
            writer.write(struct.pack(f"<{top}{code}{top}e", *likeliest, *logarithms))
    return file
