"""Refuse files whose content is neither text nor tokens. Free of torch.

A name proves nothing. The first bytes decide, and then blocks all over the file, which must be UTF-8.
"""

from __future__ import annotations

import codecs
import json
import os
import stat
from pathlib import Path

BLOCK_BYTES = 2**16
BYTES_HINT = "convert it to UTF-8 (`iconv`), or set `bytes: true` in `data` to train on its bytes"
MAX_BLOCKS = 64  # per source: all of a file of up to 4 MiB, or 4 MiB of a larger one
TO_LINES = "write its text to a .jsonl file, one JSON object per line with the field `text`"

# The first bytes of formats, from their specifications. A container format has the name of its usual content.
MAGIC = (
    (b"PAR1", "Parquet"),
    (b"ARROW1", "Arrow"),
    (b"FEA1", "Feather"),
    (b"\xff\xff\xff\xff", "an Arrow stream"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x04\x22\x4d\x18", "LZ4"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"PK\x03\x04", "a ZIP archive (such as .npz, .pt, .docx or .xlsx)"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x89HDF\r\n\x1a\n", "HDF5"),
    (b"Obj\x01", "Avro"),
    (b"ORC", "ORC"),
    (b"MMIDIDX\x00\x00", "an index of Megatron tokens"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"RIFF", "audio, video or an image (RIFF)"),
    (b"%PDF-", "PDF"),
    (b"\x7fELF", "a program (ELF)"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    *((b"\x80" + bytes([protocol]), "a Python pickle") for protocol in range(2, 6)),
)
HINTS = {
    "gzip": "only .jsonl.gz is read compressed: decompress it with `gunzip`",
    "Zstandard": "only .jsonl.zst is read compressed: decompress it with `zstd -d`",
    "bzip2": "decompress it with `bunzip2`",
    "xz": "decompress it with `unxz`",
    "LZ4": "decompress it with `lz4 -d`",
    "Parquet": "name it .parquet, and `holmes data FILE.parquet -o TOKENS.bin` reads its column `text`",
    "UTF-16 text": "`iconv -f UTF-16 -t UTF-8` makes it UTF-8",
}
TABLES = {".csv": "a table (CSV)", ".tsv": "a table (TSV)", ".json": "JSON, whose keys and quotes are not text"}


def is_regular_file(path: Path) -> bool:
    """Return True if `path` is a file with content, False if it is a folder.

    Raises:
        FileNotFoundError: nothing exists there.
        ValueError: it is a pipe, a socket or a device, which cannot be read at a given position.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist (seen from {Path.cwd()})") from None
    kinds = {stat.S_ISFIFO: "a pipe (FIFO)", stat.S_ISSOCK: "a socket", stat.S_ISCHR: "a device"}
    kind = next((name for is_kind, name in {**kinds, stat.S_ISBLK: "a device"}.items() if is_kind(mode)), None)
    if kind is not None:
        raise ValueError(f"{path} is {kind}, but samples are read by position: write its content to a file")
    return stat.S_ISREG(mode)


def check_text(path: Path, files_in_all: int = 1) -> None:
    """Raise ValueError naming the file and its format unless `path` is UTF-8 text to train on as it is.

    The more files there are, the less is read of each one.

    Raises:
        OSError: the file cannot be read.
    """
    check_format(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        step = max(BLOCK_BYTES, size // max(1, MAX_BLOCKS // files_in_all) + 1)
        for offset in range(0, size, step):
            file.seek(offset)
            _check_block(path, offset, file.read(BLOCK_BYTES), is_last=offset + BLOCK_BYTES >= size)


def check_format(path: Path) -> None:
    """Raise ValueError naming the file and its format if it begins like a known format other than text."""
    with open(path, "rb") as file:
        kind, hint = _format(path, file.read(BLOCK_BYTES))
    if kind is not None:
        raise ValueError(f"{path} is {kind}, not text: {hint}; or set `bytes: true` in `data` to train on its bytes")


def _format(path: Path, head: bytes) -> tuple[str | None, str]:
    """Return the format, other than text, of a file that begins with `head`, and advice about it."""
    kind = next((name for magic, name in MAGIC if head.startswith(magic)), None)
    if kind is None and head[257:262] == b"ustar":
        kind = "a tar archive"
    if kind is None and head[8:9] == b"{" and b"\x00" in head[:8]:
        kind = "a file of weights (safetensors)"
    kind = kind or TABLES.get(path.suffix.lower())
    if kind is None and path.suffix != ".jsonl" and _is_json_line(head):
        return "JSON lines by its first line", "name it .jsonl; then its field `text` is read"
    return kind, HINTS.get(kind or "", TO_LINES)


def _is_json_line(head: bytes) -> bool:
    """Return True if the first line is a JSON object."""
    line = head.split(b"\n", 1)[0].strip()
    if not line.startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _check_block(path: Path, offset: int, block: bytes, is_last: bool) -> None:
    """Raise ValueError unless `block`, cut out of the file at `offset`, is UTF-8 without NUL bytes."""
    zero = block.find(b"\x00")
    if zero >= 0:
        raise ValueError(f"{path} is not text: byte {offset + zero} is NUL; {BYTES_HINT}")
    begin = 0
    while offset and begin < min(3, len(block)) and block[begin] & 0xC0 == 0x80:  # the rest of a cut character
        begin += 1
    try:
        codecs.getincrementaldecoder("utf-8")().decode(block[begin:], final=is_last)
    except UnicodeDecodeError as error:
        place = offset + begin + error.start
        value = block[begin + error.start]
        raise ValueError(f"{path} is not UTF-8 text: byte {place} is {value:#04x}; {BYTES_HINT}") from None
