"""From text to tokens: raw text, JSONL and Parquet, as bytes or through a `tokenizers` file. Free of torch.

Raw text is one document per file, its bytes unchanged. A line of a .jsonl file, also .jsonl.gz or .jsonl.zst, is one
document: its field "text". A row of a .parquet file is one too: its column "text". A document ends with a token of its
own if there is a tokenizer, and in .jsonl and .parquet files in any case.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holmes_runtime.config.bounded_file import open_bounded
from holmes_runtime.config.run_settings import BYTE_VALUES
from holmes_runtime.node.data_files.bad_lines import BadLines
from holmes_runtime.node.data_files.document_tokens import begin_of_document, end_of_document
from holmes_runtime.node.data_files.documents import has_documents, is_table, read_documents
from holmes_runtime.node.data_files.file_kind import is_regular_file

PIECE_BYTES = 2**16  # raw text is tokenized in pieces of about this size, cut at the end of a line
MAX_TOKENIZER_BYTES = 2**28  # the largest have tens of MB
BATCH_BYTES = 2**22  # pieces are tokenized together, so that several cores work
END_OF_DOCUMENT_BYTE = 0  # occurs in no text
BESIDE_TABLES = {"dataset_info.json", "state.json", "README.md", ".gitattributes"}  # in a folder of a data set
_BESIDE_TOKENS = re.compile(r"\.(idx|teacher)$|^\..*\.(bin|idx|teacher)\.\d+$")  # or a file under way


@dataclass(frozen=True)
class TextPiece:
    """Some bytes of a document. `source_bytes` of the file were read for it."""

    text: bytes
    ends_document: bool
    source_bytes: int


class Tokenizer(Protocol):
    """Turns pieces of text into tokens below `vocab_size`.

    `begin_of_document` comes before each document, and `end_of_document` after it, if not None.
    """

    vocab_size: int
    begin_of_document: int | None
    end_of_document: int | None

    def encode(self, pieces: list[bytes]) -> list[Iterable[int]]:
        """Return the tokens of each piece."""

    def decode(self, tokens: list[int]) -> str:
        """Return the text of `tokens`, including special tokens."""


class ByteTokenizer:
    """A tokenizer whose tokens are bytes."""

    vocab_size = BYTE_VALUES
    begin_of_document: int | None = None

    def __init__(self, end_of_document: int | None) -> None:
        self.end_of_document = end_of_document

    def encode(self, pieces: list[bytes]) -> list[Iterable[int]]:
        """Return the bytes themselves."""
        return list(pieces)

    def decode(self, tokens: list[int]) -> str:
        """Return the text of these bytes. Bytes that are not UTF-8 become U+FFFD."""
        return bytes(tokens).decode("utf-8", errors="replace")


class FileTokenizer:
    """A JSON file of the `tokenizers` library. Raises ModuleNotFoundError if the library is not installed."""

    def __init__(self, path: str) -> None:
        try:
            library = importlib.import_module("tokenizers")
        except ModuleNotFoundError:
            raise ModuleNotFoundError(f"the tokenizer {path} needs the Python package `tokenizers`") from None
        try:
            open_bounded(Path(path), MAX_TOKENIZER_BYTES).close()
            self._tokenizer: Any = library.Tokenizer.from_file(path)
        except Exception as error:  # the library raises no narrower type
            raise ValueError(f"{path} is not a tokenizer file: {error}") from None
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        self.begin_of_document = begin_of_document(Path(path), self._tokenizer)
        self.end_of_document = end_of_document(Path(path), self._tokenizer)

    def encode(self, pieces: list[bytes]) -> list[Iterable[int]]:
        """Return the tokens of each piece, without the tokens that a tokenizer adds around a whole text."""
        texts = [piece.decode("utf-8") for piece in pieces]
        return [found.ids for found in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))


def source_files(path: Path, pattern: str) -> list[Path]:
    """Return the file `path`, or the files of the folder `path` that match `pattern`, sorted by name.

    Files that belong to a token file, such as its index, are left out, and so are the descriptions of a data set that
    lie with its tables.

    Raises FileNotFoundError if there is none, and ValueError for a pipe or device.
    """
    if is_regular_file(path):
        return [path]
    found = [file for file in path.glob(pattern) if file.is_file() and not _BESIDE_TOKENS.search(file.name)]
    if not found:
        raise FileNotFoundError(f"folder {path} has no file matching {pattern!r}")
    if any(is_table(file) for file in found):
        found = [file for file in found if file.name not in BESIDE_TABLES]
    return sorted(found, key=lambda file: file.name)


def open_tokenizer(path: Path, tokenizer: str | None) -> Tokenizer:
    """Return the tokenizer for the text of the file `path`: the given `tokenizers` file, or bytes.

    Raises ModuleNotFoundError if `tokenizers` is not installed, and ValueError if `tokenizer` is not such a file.
    """
    if tokenizer is not None:
        return FileTokenizer(tokenizer)
    return ByteTokenizer(END_OF_DOCUMENT_BYTE if has_documents(path) else None)


def tokenized(
    path: Path, tokenizer: Tokenizer, bad_lines: BadLines
) -> Iterator[tuple[TextPiece, tuple[Iterable[int], ...]]]:
    """Yield the pieces of the file `path` with their tokens and the tokens at the borders of documents.

    Raises:
        ValueError: the file is not text; the message names it and the position.
    """
    begin, end = (() if each is None else (each,) for each in (tokenizer.begin_of_document, tokenizer.end_of_document))
    begins_document = True
    for batch in _batches(_pieces(path, bad_lines)):
        try:
            encoded = tokenizer.encode([piece.text for piece in batch])
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text: {error}") from None
        for piece, tokens in zip(batch, encoded, strict=True):
            yield piece, (begin if begins_document else (), tokens, end if piece.ends_document else ())
            begins_document = piece.ends_document


def _pieces(path: Path, bad_lines: BadLines) -> Iterator[TextPiece]:
    """Yield the text of the file `path`, piece by piece.

    Raises:
        ValueError: too many lines of a file of documents have no document.
        ModuleNotFoundError: the Python package needed to read it is missing.
    """
    if not has_documents(path):
        yield from _raw_text(path)
        return
    for text, source_bytes in read_documents(path, bad_lines):
        yield TextPiece(text, ends_document=True, source_bytes=source_bytes)


def _raw_text(path: Path) -> Iterator[TextPiece]:
    with open(path, "rb") as file:
        while lines := file.readlines(PIECE_BYTES):
            text = b"".join(lines)
            yield TextPiece(text, ends_document=False, source_bytes=len(text))
    yield TextPiece(b"", ends_document=True, source_bytes=0)


def _batches(parts: Iterable[TextPiece]) -> Iterator[list[TextPiece]]:
    batch: list[TextPiece] = []
    size = 0
    for piece in parts:
        batch.append(piece)
        size += piece.source_bytes
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
