"""The corpus of a run: the files of `data`, opened and split into training and validation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holmes_runtime.config.run_settings import BYTE_VALUES, DataSettings
from holmes_runtime.data.token_store import kept_tokens
from holmes_runtime.data.tokens import TokenPart, Tokens
from holmes_runtime.node.data_files.bad_lines import BadLines
from holmes_runtime.node.data_files.check_inputs import check_source
from holmes_runtime.node.data_files.documents import has_documents
from holmes_runtime.node.data_files.stored_bytes import FileBytes, digest_of
from holmes_runtime.node.data_files.teacher_file import TeacherRows, read_teacher
from holmes_runtime.node.data_files.text import open_tokenizer
from holmes_runtime.node.data_files.token_file import DocumentStarts, TokenFile, read_index


@dataclass(frozen=True)
class Corpus:
    """The tokens by source. Equal tokens have an equal `digest`. `validation` is the end of each source.

    `bad_lines` of its text hold no document and are skipped.
    """

    training: tuple[Tokens, ...]
    validation: tuple[Tokens, ...]
    digest: str
    bad_lines: BadLines

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all sources, including validation."""
        return sum(map(len, (*self.training, *self.validation)))


def load_corpus(
    data: DataSettings, host: str, seq_length: int, vocab_size: int, expected_tokenizer: str | None = None
) -> Corpus:
    """Return the tokens of `data`, read from files when needed.

    Raises OSError or ValueError naming host and path if there is nothing to read, a file cannot be read, a part holds
    no whole sample, or a file is known to have a token outside the vocabulary.
    """
    try:
        return _load(data, seq_length, vocab_size, expected_tokenizer)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        raise type(error)(f"host {host}: {error}") from None


def _load(data: DataSettings, seq_length: int, vocab_size: int, expected_tokenizer: str | None) -> Corpus:
    bad_lines = BadLines(data.skip_bad_lines)
    files = [
        check_source(Path(source.path), data, expected_tokenizer, seq_length, vocab_size) for source in data.sources
    ]
    opened = [_open_files(of_source, data, vocab_size, bad_lines) for of_source in files]
    training, validation = [], []
    for source, parts in zip(data.sources, opened, strict=True):
        tokens = Tokens(parts)
        boundary = end = len(tokens) - int(len(tokens) * data.validation_fraction)
        if tokens.packed_length is not None:
            boundary -= boundary % seq_length
            end = boundary + 1  # the last target of a packed sequence is the next one's first token
        training.append(tokens.section(0, end))
        validation.append(tokens.section(boundary, len(tokens)))
        sections = {"training": training[-1], "validation": validation[-1]}
        for name in sections if data.validation_fraction > 0 else ["training"]:
            if len(sections[name]) <= seq_length:
                raise ValueError(
                    f"{source.path} has {len(sections[name])} tokens for {name}, but a sample needs {seq_length + 1} "
                    "(seq_length + 1)"
                )
    parts = [part for parts in opened for part in parts]
    if data.documents == "separate" and len(parts) == 1 and not parts[0].documents:
        raise ValueError(f"{parts[0].name} is one document, as plain text is: documents cannot be separate")
    indices = [part.documents.index_file for part in parts if isinstance(part.documents, DocumentStarts)]
    teachers = [part.teacher.stored for part in parts if part.teacher is not None]
    digest = digest_of([*(part.stored for part in parts), *indices, *teachers])
    return Corpus(tuple(training), tuple(validation), digest, bad_lines)


def _open_files(files: list[Path], data: DataSettings, vocab_size: int, bad_lines: BadLines) -> list[TokenPart]:
    """Return the tokens of the files of one source."""
    parts = [_open_file(file, data, vocab_size, bad_lines) for file in files]
    for part in parts:
        if part.largest_token is not None and part.largest_token >= vocab_size:
            raise ValueError(
                f"{part.name} has token {part.largest_token}, but vocab_size is {vocab_size}: raise vocab_size, or "
                "tokenize again with the model's tokenizer"
            )
    return parts


def _open_file(path: Path, data: DataSettings, vocab_size: int, bad_lines: BadLines) -> TokenPart:
    tokenizer = data.tokenizer
    if path.suffix == ".bin":
        return _token_part(path, read_index(path), data)
    if tokenizer is None and vocab_size < BYTE_VALUES:
        raise ValueError(f"{path} is read as bytes, which takes a vocab_size of {BYTE_VALUES}, not {vocab_size}")
    if tokenizer is None and not has_documents(path):
        return TokenPart(str(path), FileBytes(path), "uint8")
    return _tokenized(path, data, bad_lines)


def _tokenized(path: Path, data: DataSettings, bad_lines: BadLines) -> TokenPart:
    """Return the tokens of documents, or of text for a tokenizer, made once on this host and read from their file."""
    try:
        tokenizer = open_tokenizer(path, data.tokenizer)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error}: install it, or tokenize once where it is, `holmes data {path} --tokenizer {data.tokenizer} "
            "-o TOKENS.bin`, and train on TOKENS.bin"
        ) from None
    return _token_part(path, kept_tokens(path, data.tokenizer, tokenizer, bad_lines), data)


def _token_part(name: Path, index: TokenFile, data: DataSettings) -> TokenPart:
    documents = DocumentStarts(index) if data.documents == "separate" else ()
    stored = FileBytes(index.path)
    teacher = None if data.teacher is None else TeacherRows(read_teacher(index.path))
    return TokenPart(str(name), stored, index.token_type, documents, index.largest_token, index.packed_length, teacher)
