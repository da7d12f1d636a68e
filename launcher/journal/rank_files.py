"""Traces and memory reports of ranks. They arrive from the nodes in parts and are kept in the run's folder."""

from __future__ import annotations

import base64
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holmes_core.errors import ANSWER_IS_NO
from holmes_core.records.record_file import private_opener
from holmes_core.records.regular_file import MIB, read_regular
from holmes_runtime.config.checks import shown
from holmes_runtime.config.messages import RankFile
from holmes_runtime.config.rank_metrics import MAX_SPANS, RankTrace, rank_file
from holmes_runtime.config.strict_json import parse
from launcher.journal.read_folder import reading

FOLDER = "ranks"
MAX_BYTES = 1 << 28  # limit of a file in the run's folder
MAX_TRACE_BYTES = 32 * MIB  # unpacked: MAX_SPANS are 10 MB of text
MAX_TRACE_VALUES = 10 * MAX_SPANS  # a span has 4 values, and the C++ names contain commas
_GZIP = 31  # zlib's wbits for one gzip member with its checksum


class FilePart(NamedTuple):
    """Bytes of a rank's file, starting at `offset`."""

    name: str
    offset: int
    data: bytes


def misfit_of_part(message: RankFile) -> str | None:
    """Return why the message is not a part of a rank's file; None if it is one."""
    if not 0 <= message.offset < MAX_BYTES:
        return f"RankFile from byte {message.offset} on; a file has at most {MAX_BYTES}"
    try:
        base64.b64decode(message.data, validate=True)
    except ValueError:
        return f"RankFile whose data is not base64: {message.data[:40]!r}"
    return None


def file_part(message: RankFile) -> FilePart:
    """Return the part that a node sent, ready to write."""
    return FilePart(rank_file(message.file, message.rank), message.offset, base64.b64decode(message.data))


def write_part(run_folder: Path, part: FilePart) -> None:
    """Write a part at its offset. Offset 0 replaces the file. The same part may arrive twice."""
    path = run_folder / FOLDER / part.name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with open(path, "r+b" if part.offset and path.exists() else "wb", opener=private_opener) as file:
        file.seek(part.offset)
        file.write(part.data)


def read_traces(run_folder: Path) -> Iterator[RankTrace]:
    """Yield the received traces in order of file names. Raises HolmesError naming one that cannot be read."""
    for path in sorted((run_folder / FOLDER).glob("trace-rank*.json.gz")):
        with reading(path, "remove it to see the others", ANSWER_IS_NO):
            text = _unpacked(read_regular(path, MAX_TRACE_BYTES, inside=run_folder)).decode("ascii")
            trace = parse(RankTrace, text, MAX_TRACE_VALUES)
            _check_columns(trace)
        yield trace


def _unpacked(packed: bytes) -> bytes:
    """Return the text of a trace. Raises ValueError or zlib.error if it is invalid or too large."""
    unpacking = zlib.decompressobj(_GZIP)
    text = unpacking.decompress(packed, MAX_TRACE_BYTES)
    if not unpacking.eof:
        raise ValueError(f"cut off, or more than {MAX_TRACE_BYTES // MIB} MiB unpacked")
    return text


def _check_columns(trace: RankTrace) -> None:
    """Raise ValueError for spans without a valid track, name or time."""
    columns = (trace.track, trace.name, trace.start_ns, trace.duration_ns)
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"columns of {', '.join(str(len(column)) for column in columns)} spans")
    numbers = (trace.rank,), *columns
    limits = sys.maxsize, len(trace.tracks), len(trace.names), sys.maxsize, sys.maxsize
    for column, limit in zip(numbers, limits, strict=True):
        if column and not 0 <= min(column) <= max(column) < limit:
            raise ValueError(f"numbers from {shown(min(column))} to {shown(max(column))}, not from 0 to {limit - 1}")
