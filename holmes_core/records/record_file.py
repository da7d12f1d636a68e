"""Write files of records atomically, and read them with a check for any change.

Files that people write (hosts.yaml, job.yaml) hold only the record. Files that Holmes writes (inventory, plan, run)
have a header too, and one line per host, rank and the like. They are read line by line: the text of a large inventory,
and the objects a parser makes of it, are several times as large as the inventory.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, get_origin

from pydantic import TypeAdapter

from holmes_core.errors import HolmesError
from holmes_core.own_key import is_own, signature
from holmes_core.records.parse_record import parse, record_in
from holmes_core.records.plain_data import MAX_JSON_BYTES, MAX_VALUES, YamlLines, json_values, read_plain
from holmes_core.records.record import FileRecord, Record
from holmes_core.records.regular_file import MIB, open_regular

R = TypeVar("R", bound=Record)
F = TypeVar("F", bound=FileRecord)

MAX_OWN_BYTES = 512 * MIB  # an inventory of 12,500 hosts with eight GPUs has 150 MB
MAX_HEADER_BYTES = 4096  # kind, digest and signature take about 200
MAX_OTHER_VALUES = 4 * MAX_VALUES  # outside records with their own line; a plan of 92,000 ranks has 434,000
_HEADER = ("kind", "digest", "signature", "advice")  # only `holmes plan --json` prints `advice`, which is never trusted


@dataclass(frozen=True)
class SignedRecord(Generic[F]):
    """A record. `is_own`: this user's Holmes wrote its file on this machine."""

    record: F
    is_own: bool


def write_atomically(path: Path, text: str | Iterable[str], private: bool = False) -> None:
    """Write `text`, one string or several parts, to `path`. Readers see the old file or the new one, never a mixture.

    `private`: only this user can read it. A lone surrogate is written as the byte it stands for (`surrogateescape`).

    Raises:
        HolmesError: The folder is missing or not writable.
    """
    with written(path, text, private):
        pass


@contextlib.contextmanager
def written(path: Path, text: str | Iterable[str], private: bool = False) -> Iterator[None]:
    """Write a file as `write_atomically` does, but show it to readers only once the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        opener = private_opener if private else None
        with open(temporary, "x", encoding="utf-8", errors="surrogateescape", opener=opener) as file:
            file.writelines([text] if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        yield
        temporary.replace(path)
    except OSError as error:
        raise HolmesError(
            f"{path}: cannot be written: {error.strerror or error}", "choose a folder that exists and is writable"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def private_opener(path: str, flags: int) -> int:
    """Open a file as `open` asks; only this user can read and write a new one, regardless of the umask."""
    return os.open(path, flags, 0o600)


def write_signed(path: Path, record: FileRecord, private: bool = False) -> None:
    """Write the record to a file signed as this user's own. Raises HolmesError as `write_atomically` does."""
    write_atomically(path, signed_parts(record), private)


def signed_parts(record: FileRecord) -> Iterator[str]:
    """Yield the parts of a record's file, signed as this user's own. Raises HolmesError if it cannot be signed."""
    return record.json_parts(signature(record.KIND, record.digest()))


def read_user_file(cls: type[R], path: Path) -> R:
    """Read the record in a file that a person wrote. Raises HolmesError with the file, YAML line, key and value."""
    return parse(cls, read_plain(path), str(path), YamlLines(path))


def read_file(cls: type[F], path: Path, inside: Path | None = None) -> F:
    """Read the record in a file that Holmes wrote, and check kind and digest. `inside`: the folder it must be in.

    Raises:
        HolmesError: The file is of another kind, or was changed since it was written.
    """
    return read_signed(cls, path, inside).record


def read_signed(cls: type[F], path: Path, inside: Path | None = None) -> SignedRecord[F]:
    """Read as `read_file` does, and check if this user's Holmes wrote the file on this machine."""
    return read_any((cls,), path, inside)


def read_any(classes: Sequence[type[F]], path: Path, inside: Path | None = None) -> SignedRecord[F]:
    """Read as `read_signed` does, but accept several kinds. The error for any other kind names the first of them.

    Raises:
        HolmesError: As in `read_file`.
    """
    record, header = _read_lines(classes, path, inside) or _read_whole(classes, path, inside)
    digest = record.digest()
    if header["digest"] != digest:
        raise HolmesError(
            f"{path}: changed since it was written (digest {header['digest']!r}, content {digest!r})",
            f"make it again with `{record.RENEW}`; set your choices in hosts.yaml and job.yaml",
        )
    return SignedRecord(record, is_own(record.KIND, digest, header["signature"]))


def _read_whole(classes: Sequence[type[F]], path: Path, inside: Path | None) -> tuple[F, dict[str, Any]]:
    """Return the record and the header of a file in any layout. Raises HolmesError as `read_any` does."""
    data = read_plain(path, f"; `{classes[0].RENEW}` makes it", inside)
    fields = data if isinstance(data, dict) else {}
    header = {key: fields.pop(key, None) for key in _HEADER}
    cls = _of_kind(classes, header["kind"])
    if cls is None:
        seen = f"its kind is {header['kind']}" if isinstance(header["kind"], str) else "Holmes did not write it"
        raise HolmesError(f"{path}: not of kind {classes[0].KIND}: {seen}", f"make one with `{classes[0].RENEW}`")
    return parse(cls, fields, str(path)), header


def _read_lines(classes: Sequence[type[F]], path: Path, inside: Path | None) -> tuple[F, dict[str, Any]] | None:
    """Return the record and the header of a file that has the lines `json_parts` writes.

    None for any other file, and at any fault, which `_read_whole` then explains.
    """
    try:
        with open_regular(path, MAX_OWN_BYTES, inside) as file:
            size = os.fstat(file.fileno()).st_size
            first = file.readline(MAX_HEADER_BYTES)
            header = dict.fromkeys(_HEADER) | json_values(first.decode().rstrip(",\n") + "}")
            cls = _of_kind(classes, header["kind"])
            if cls is None or (size > MAX_JSON_BYTES and not is_own(cls.KIND, header["digest"], header["signature"])):
                return None
            fields = _fields(cls, first, _lines(file, size - len(first)))
        return cls.model_validate({name: value for name, value in fields.items() if name not in _HEADER}), header
    except (OSError, ValueError, RecursionError):
        return None


def _fields(cls: type[FileRecord], first: bytes, lines: Iterable[bytes]) -> dict[str, Any]:
    """Return the fields of a file whose first line is `first`.

    Records are read one line at a time. The other lines form a small JSON document, which is read as a whole.

    Raises:
        ValueError: A line is malformed, or the file has another layout.
    """
    annotations = {name: field.annotation for name, field in cls.model_fields.items()}
    item_types = {name: record_in(kind) for name, kind in annotations.items() if get_origin(kind) is tuple}
    arrays: dict[bytes, tuple[str, TypeAdapter[Any]]] = {
        f' "{name}": [\n'.encode(): (name, TypeAdapter(item)) for name, item in item_types.items() if item
    }
    rest, last, records = bytearray(first), first, dict[str, list[Any]]()
    for line in lines:
        if line.startswith(b"  {") and last in arrays:
            name, item = arrays[last]
            if line.count(b",") + line.count(b"[") > MAX_VALUES:  # each could become an error of the parser
                raise ValueError(f"more values than a record of {name} has")
            record, comma, _ = line.rpartition(b",\n") if line.endswith(b",\n") else (line, b"", b"")
            records.setdefault(name, []).append(item.validate_json(record))
            rest += b"0" + comma.rstrip(b"\n") + b"\n"  # in the record's place, to check commas and brackets
        else:
            rest += line
            last = line
    fields: dict[str, Any] = json_values(rest.decode(), MAX_OTHER_VALUES)
    if any(fields.get(name) != [0] * len(items) for name, items in records.items()):
        raise ValueError("records that have no line of their own")
    return fields | {name: tuple(items) for name, items in records.items()}


def _lines(file: BinaryIO, max_bytes: int) -> Iterator[bytes]:
    """Yield up to `max_bytes` of a file's lines; the file may grow meanwhile."""
    while line := file.readline(max(0, max_bytes)):
        max_bytes -= len(line)
        yield line


def _of_kind(classes: Sequence[type[F]], kind: object) -> type[F] | None:
    return next((cls for cls in classes if kind == cls.KIND), None)
