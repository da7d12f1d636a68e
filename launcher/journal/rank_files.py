"""Files of ranks, traces and memory reports, as they come in parts from the nodes and lie in the run's folder."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.record_file import private_opener
from holmes_core.records.regular_file import check_regular
from holmes_runtime.config.messages import RankFile
from holmes_runtime.config.rank_metrics import RankTrace, rank_file
from holmes_runtime.config.strict_json import parse

FOLDER = "ranks"
MOST_BYTES = 1 << 28  # of a file: 200,000 spans are 10 MB of text


class FilePart(NamedTuple):
    """Bytes of a rank's file, from `offset` of it on."""

    name: str
    offset: int
    data: bytes


def misfit_of_part(message: RankFile) -> str | None:
    """Why that is no part of a rank's file; None if it is one."""
    if not 0 <= message.offset < MOST_BYTES:
        return f"RankFile from byte {message.offset} on; a file has at most {MOST_BYTES}"
    try:
        base64.b64decode(message.data, validate=True)
    except ValueError:
        return f"RankFile whose data is not base64: {message.data[:40]!r}"
    return None


def file_part(message: RankFile) -> FilePart:
    """What a node sent, ready to be written."""
    return FilePart(rank_file(message.file, message.rank), message.offset, base64.b64decode(message.data))


def write_part(run_folder: Path, part: FilePart) -> None:
    """Writes a part where it belongs: of a file that begins anew nothing is left, and a part may come twice."""
    path = run_folder / FOLDER / part.name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with open(path, "r+b" if part.offset and path.exists() else "wb", opener=private_opener) as file:
        file.seek(part.offset)
        file.write(part.data)


def read_traces(run_folder: Path) -> Iterator[RankTrace]:
    """The traces that have come, by file. Raises HolmesError naming one that cannot be read."""
    for path in sorted((run_folder / FOLDER).glob("trace-rank*.json.gz")):
        try:
            check_regular(path, MOST_BYTES, inside=run_folder)
            with gzip.open(path) as file:
                text = file.read(MOST_BYTES + 1)
            if len(text) > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES} bytes")
            yield parse(RankTrace, text.decode())
        except (ValueError, OSError, EOFError) as error:
            raise HolmesError(
                f"{path}: no trace of a rank: {error}", "remove it to see the others", ANSWER_IS_NO
            ) from None
