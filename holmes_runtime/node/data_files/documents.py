"""The documents of files that separate them: lines of JSON, which may be compressed, and rows of Parquet or
Arrow. Free of torch.

Packages outside the standard library are imported only if a file needs them. However small a compressed file is, at
most one line of its content is in memory.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, TypeVar, cast

from holmes_runtime.node.data_files.bad_lines import BadLines
from holmes_runtime.node.data_files.file_kind import check_format

GZIP_LINES, ZSTD_LINES, PARQUET, ARROW = ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow"
SUFFIXES = (".jsonl", GZIP_LINES, ZSTD_LINES, PARQUET, ARROW)
MAX_LINE_BYTES = 2**28  # enough for a whole encyclopaedia; a line without an end is not a document
PACKED_BYTES = 2**12  # decompressed at once: even zeros expand to no more than 2**27 bytes
MAX_WINDOW_BYTES = 2**27  # of memory that a Zstandard frame may ask for, the limit of its own command-line tool
ROWS = 256  # at a time
Document = tuple[bytes, int]
"""The UTF-8 text of a document, and the number of bytes read from its file for it."""
Converted = TypeVar("Converted")


def has_documents(path: Path) -> bool:
    """Return True if the name of `path` is that of a file with separate documents."""
    return path.name.endswith(SUFFIXES)


def is_table(path: Path) -> bool:
    """Return True if the name of `path` is that of a file with rows."""
    return path.name.endswith((PARQUET, ARROW))


def read_documents(path: Path, bad_lines: BadLines) -> Iterator[Document]:
    """Yield the documents of the file `path`, from the field or column "text". Raises as `read_records` does."""
    return read_records(path, bad_lines, ("text",), _text_field)


def read_records(
    path: Path, bad_lines: BadLines, columns: Sequence[str], convert: Callable[[Mapping[str, object]], Converted]
) -> Iterator[tuple[Converted, int]]:
    """Yield the result of `convert` for each line or row of `path`, and the bytes read from the file for it.

    Lines for which it raises ValueError are skipped, up to the limit of `bad_lines`. Of rows, only `columns` are read,
    and at least one of them must exist.

    Raises:
        ValueError: too many lines or rows are skipped, or the content does not match the file's name.
        ModuleNotFoundError: the Python package that reads such files is missing.
        OSError: the file cannot be read.
    """
    if is_table(path):
        return _rows(path, bad_lines, columns, convert)
    if path.suffix == ".jsonl":
        check_format(path)
    return _lines(path, bad_lines, convert)


def _lines(
    path: Path, bad_lines: BadLines, convert: Callable[[Mapping[str, object]], Converted]
) -> Iterator[tuple[Converted, int]]:
    with open(path, "rb") as raw:
        lines, number, before = _decompressed(path, raw), 0, 0
        while line := _next_line(path, lines, number + 1):
            number += 1
            if line.strip():
                read_bytes = len(line) if lines is raw else raw.tell() - before
                before += read_bytes
                try:
                    converted = convert(_record(line))
                except ValueError as error:
                    bad_lines.skip(f"{path}, line {number}: {error}")
                else:
                    yield converted, read_bytes


def _decompressed(path: Path, raw: BinaryIO) -> BinaryIO:
    if path.name.endswith(GZIP_LINES):
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if path.name.endswith(ZSTD_LINES):
        return _from_zstd(path, raw)
    return raw


def _from_zstd(path: Path, raw: BinaryIO) -> BinaryIO:
    """Return the content of a Zstandard file, read by Python's own module from 3.14 on, else by a package."""
    try:
        own: Any = importlib.import_module("compression.zstd")
    except ModuleNotFoundError:
        return cast(BinaryIO, io.BufferedReader(_ZstdFrames(raw, _package(path, "zstandard"))))
    limit = {own.DecompressionParameter.window_log_max: MAX_WINDOW_BYTES.bit_length() - 1}
    return cast(BinaryIO, own.ZstdFile(raw, options=limit))


class _ZstdFrames(io.RawIOBase):
    """The content of all frames of `raw`, read by the package. Reading a truncated file raises EOFError.

    The package's own reader accepts part of a file as the whole.
    """

    def __init__(self, raw: BinaryIO, package: Any) -> None:
        self._raw, self._decompressor = raw, package.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        self._frame: Any = None
        self._packed, self._content = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with available content, and return the number of bytes."""
        while not self._content:
            packed, self._packed = self._packed or self._raw.read(PACKED_BYTES), b""
            if not packed and self._frame is not None:
                raise EOFError
            if not packed:
                return 0
            self._frame = self._frame or self._decompressor.decompressobj()
            self._content = memoryview(self._frame.decompress(packed))
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._content))
        buffer[:count], self._content = self._content[:count], self._content[count:]
        return count


def _next_line(path: Path, lines: BinaryIO, number: int) -> bytes:
    try:
        line = lines.readline(MAX_LINE_BYTES)
    except EOFError:
        raise ValueError(f"{path}, line {number}: the compressed file is cut off; copy it again") from None
    except Exception as error:  # each module of Zstandard has its own
        if isinstance(error, zlib.error | gzip.BadGzipFile) or type(error).__name__ == "ZstdError":
            raise ValueError(f"{path}, line {number}: cannot be decompressed: {error}") from None
        raise
    if len(line) == MAX_LINE_BYTES:
        raise ValueError(f"{path}, line {number} has {MAX_LINE_BYTES >> 20} MiB without an end: the file is not JSONL")
    return line


def _record(line: bytes) -> Mapping[str, object]:
    """Return the fields of a line. Raises ValueError if it has none."""
    try:
        record = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")
    return record


def _text_field(record: Mapping[str, object]) -> bytes:
    """Return the text of a line or row. Raises ValueError if it has none."""
    if "text" not in record:
        hint = "; `holmes data` makes tokens of examples" if {"messages", "completion"} & record.keys() else ""
        raise ValueError(f'it has no field "text", only {sorted(record)}{hint}')
    if not isinstance(record["text"], str):
        raise ValueError(f'the field "text" is {record["text"]!r}, not a string')
    return record["text"].encode("utf-8")


def _rows(
    path: Path, bad_lines: BadLines, columns: Sequence[str], convert: Callable[[Mapping[str, object]], Converted]
) -> Iterator[tuple[Converted, int]]:
    open_rows = _arrow_rows if path.name.endswith(ARROW) else _parquet_rows
    number = 0
    for records, source_bytes in open_rows(path, columns):
        for record in records:
            number += 1
            try:
                converted = convert(record)
            except ValueError as error:
                bad_lines.skip(f"{path}, row {number}: {error}")
            else:
                yield converted, source_bytes // len(records)


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[list[dict[str, object]], int]]:
    """Yield rows with the existing ones of `columns`, some at a time, and their bytes in the file."""
    package: Any = _package(path, "pyarrow")
    parquet: Any = _package(path, "pyarrow.parquet")
    with _named_damage(path, "Parquet file", package):
        file = parquet.ParquetFile(path)
        there = _present(path, columns, file.schema_arrow.names)
        share = path.stat().st_size / max(1, file.metadata.num_rows)
        for batch in file.iter_batches(batch_size=ROWS, columns=there):
            batch.validate(full=True)
            yield batch.to_pylist(), int(share * batch.num_rows)


def _arrow_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[list[dict[str, object]], int]]:
    """Yield rows as `_parquet_rows` does, from a table saved by the `datasets` library: a stream of batches."""
    package: Any = _package(path, "pyarrow")
    streams: Any = _package(path, "pyarrow.ipc")
    with _named_damage(path, "Arrow stream", package), package.memory_map(str(path)) as file:
        stream = streams.open_stream(file)
        there = _present(path, columns, stream.schema.names)
        before = 0
        for batch in stream:
            rows = batch.select(there)
            rows.validate(full=True)  # the library follows offsets of a file as they are, also out of its memory
            for start in range(0, rows.num_rows, ROWS):
                yield rows.slice(start, ROWS).to_pylist(), file.tell() - before
                before = file.tell()


@contextmanager
def _named_damage(path: Path, kind: str, package: Any) -> Iterator[None]:
    """Raise ValueError with the name of the file for content that the library cannot read."""
    try:
        yield
    except (package.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's, such as on a missing right
            raise
        raise ValueError(f"{path} is not a whole {kind}: {error}") from None


def _present(path: Path, columns: Sequence[str], names: Sequence[str]) -> list[str]:
    there = [name for name in columns if name in names]
    if not there:
        raise ValueError(f"{path} has no column {' or '.join(columns)}, only {names}")
    return there


def _package(path: Path, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        package = name.partition(".")[0]
        raise ModuleNotFoundError(
            f"{path} needs the Python package `{package}`: `pip install {package}`, or turn it into tokens once where "
            f"that is, `holmes data {path} -o TOKENS.bin`, and train on TOKENS.bin"
        ) from None
