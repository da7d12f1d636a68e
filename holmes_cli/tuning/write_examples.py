"""The file of packed examples, and a few of them to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from holmes_cli.tuning.examples import ExampleReader
from holmes_cli.tuning.sequence_packing import packed
from holmes_runtime.node.data_files.text import Tokenizer
from holmes_runtime.node.data_files.token_file import TokenFileWriter

SHOWN = 2  # examples


@dataclass
class PackedExamples:
    """Counts of a file of packed examples. `shown` are the tokens of the first ones."""

    examples: int = 0
    sequences: int = 0
    tokens: int = 0
    predicted: int = 0
    shown: list[Sequence[int]] = field(default_factory=list)


def write_examples(
    files: Sequence[Path],
    reader: ExampleReader,
    writer: TokenFileWriter,
    length: int,
    padding: int,
    progress: Callable[[int], None],
) -> PackedExamples:
    """Write the examples of `files`, packed in sequences of `length` and filled up with `padding`, which is only read.

    Each example is a document, and so is the padding. `progress` is called with the bytes read.

    Raises:
        ValueError, HolmesError: As `ExampleReader.read`.
    """
    written = PackedExamples()

    def examples() -> Iterator[list[int]]:
        for file in files:
            for found, source_bytes in reader.read(file):
                progress(source_bytes)
                yield from found

    for sequence in packed(_noted(examples(), written), length):
        for example in sequence:
            writer.add(example)
            writer.end_document()
        writer.add([~padding] * (length - sum(map(len, sequence))))
        writer.end_document()
        written.sequences += 1
    writer.add([~padding])  # the target of the last sequence's last token
    return written


def _noted(examples: Iterator[list[int]], written: PackedExamples) -> Iterator[list[int]]:
    for example in examples:
        written.examples += 1
        written.tokens += len(example)
        written.predicted += sum(token >= 0 for token in example)
        if len(written.shown) < SHOWN:
            written.shown.append(example)
        yield example


def stretches(example: Sequence[int], tokenizer: Tokenizer) -> list[tuple[bool, str]]:
    """Return the decoded text of an example as stretches of (is predicted, text)."""
    return [
        (is_predicted, tokenizer.decode([max(token, ~token) for token in tokens]))
        for is_predicted, tokens in groupby(example, lambda token: token >= 0)
    ]
