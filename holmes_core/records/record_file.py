"""Files of records: atomic writing, and reading that notices any change.

Files people write (hosts.yaml, job.yaml) hold the record alone; files Holmes writes (inventory, plan, run) its header
too. Hosts, ranks and their like have a line each there, and are read line by line: the text of a large inventory, and
the objects a parser makes of it, are several times as large as the inventory.
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
MAX_HEADER_BYTES = 4096  # kind, digest and signature have 200
MAX_OTHER_VALUES = 4 * MAX_VALUES  # outside the lines of records; a plan of 92,000 ranks has 434,000
_HEADER = ("kind", "digest", "signature", "advice")  # the last in what `holmes plan --json` prints, and never trusted


@dataclass(frozen=True)
class SignedRecord(Generic[F]):
    """A record; `is_own` if this user's Holmes wrote its file here."""

    record: F
    is_own: bool


def write_atomically(path: Path, text: str | Iterable[str], private: bool = False) -> None:
    """Write `text`, whole or in parts, to `path` so that readers see the old file or the new one, never a part.

    `private`: readable by this user alone. A lone surrogate becomes a byte, as `surrogateescape` reads non-UTF-8 bytes.

    Raises:
        HolmesError: The folder is missing or not writable.
    """
    with written(path, text, private):
        pass


@contextlib.contextmanager
def written(path: Path, text: str | Iterable[str], private: bool = False) -> Iterator[None]:
    """Write a file as `write_atomically` does, but let readers see it only when the block is done without an error."""
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
    """Open a file for `open`; only this user can read and write a new one, whatever the umask."""
    return os.open(path, flags, 0o600)


def write_signed(path: Path, record: FileRecord, private: bool = False) -> None:
    """Write the record's file, signed as this user's own. Raises HolmesError as `write_atomically` does."""
    write_atomically(path, signed_parts(record), private)


def signed_parts(record: FileRecord) -> Iterator[str]:
    """Yield the text of the record's file in parts, signed as this user's own. Raises HolmesError where that fails."""
    return record.json_parts(signature(record.KIND, record.digest()))


def read_user_file(cls: type[R], path: Path) -> R:
    """Read the record in a file a person wrote. Raises HolmesError naming file, line of YAML, key and value."""
    return parse(cls, read_plain(path), str(path), YamlLines(path))


def read_file(cls: type[F], path: Path, inside: Path | None = None) -> F:
    """Read the record in a file that Holmes wrote, and check kind and digest. `inside`: the folder it must lie in.

    Raises:
        HolmesError: It is another kind of file, or was changed since it was written.
    """
    return read_signed(cls, path, inside).record


def read_signed(cls: type[F], path: Path, inside: Path | None = None) -> SignedRecord[F]:
    """Read as `read_file` does, and check if this user's Holmes wrote the file here."""
    return read_any((cls,), path, inside)


def read_any(classes: Sequence[type[F]], path: Path, inside: Path | None = None) -> SignedRecord[F]:
    """Read as `read_signed` does, a file of any of these kinds. Another kind is refused as not of the first.

    Raises:
        HolmesError: As `read_file`.
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
    """Return the record and the header of a file with the lines that `json_parts` writes.

    None for any other file, and for a fault, which `_read_whole` explains.
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

    Records are read from their lines, one at a time. The other lines are a small JSON document, read as a whole.

    Raises:
        ValueError: A line is at fault, or the layout is another.
    """
    annotations = {name: field.annotation for name, field in cls.model_fields.items()}
    items = {name: record_in(kind) for name, kind in annotations.items() if get_origin(kind) is tuple}
    arrays: dict[bytes, tuple[str, TypeAdapter[Any]]] = {
        f' "{name}": [\n'.encode(): (name, TypeAdapter(item)) for name, item in items.items() if item
    }
    rest, last, records = bytearray(first), first, dict[str, list[Any]]()
    for line in lines:
        if line.startswith(b"  {") and last in arrays:
            name, item = arrays[last]
            if line.count(b",") + line.count(b"[") > MAX_VALUES:  # each could be an error of the parser
                raise ValueError(f"more values than a record of {name} has")
            record, comma, _ = line.rpartition(b",\n") if line.endswith(b",\n") else (line, b"", b"")
            records.setdefault(name, []).append(item.validate_json(record))
            rest += b"0" + comma.rstrip(b"\n") + b"\n"  # in its place, so that commas and brackets are checked
        else:
            rest += line
            last = line
    fields: dict[str, Any] = json_values(rest.decode(), MAX_OTHER_VALUES)
    if any(fields.get(name) != [0] * len(found) for name, found in records.items()):
        raise ValueError("records that have no line of their own")
    return fields | {name: tuple(found) for name, found in records.items()}


def _lines(file: BinaryIO, max_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a file, which may grow meanwhile, up to `max_bytes`."""
    while line := file.readline(max(0, max_bytes)):
        max_bytes -= len(line)
        yield line


def _of_kind(classes: Sequence[type[F]], kind: object) -> type[F] | None:
    return next((cls for cls in classes if kind == cls.KIND), None)
