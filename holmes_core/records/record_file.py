"""Files of records: atomic writing, and reading that notices any change.

Files people write (hosts.yaml, job.yaml) hold the record alone; files Holmes writes (inventory, plan, run) its header
too. The latter are read record by record: the text of a large inventory, and the objects a parser makes of it, are
several times as large as the inventory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from holmes_core.errors import HolmesError
from holmes_core.own_key import is_own, signature
from holmes_core.records.parse_record import parse, record_in
from holmes_core.records.plain_data import MAX_JSON_BYTES, MAX_VALUES, YamlLines, json_values, read_plain
from holmes_core.records.record import FileRecord, Record
from holmes_core.records.regular_file import MIB, open_regular

R = TypeVar("R", bound=Record)
F = TypeVar("F", bound=FileRecord)

MAX_OWN_BYTES = 512 * MIB  # an inventory of 12,500 hosts with eight GPUs has 200
_HEADER = ("kind", "digest", "signature")
_SIGNED = re.compile(rb'{\n "kind": "(\w+)",\n "digest": "([\w:]+)",\n "signature": "([\w:-]+)"')
_KEY = re.compile(rb'\n "(\w+)": ')  # in the text that `json_parts` makes
_KIND, _HEADER_BYTES = re.compile(rb'"kind":\s*"(\w+)"'), 4096
_NEXT_KEY = re.compile(rb'\n(?= "|})')


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
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        opener = private_opener if private else None
        with open(temporary, "x", encoding="utf-8", errors="surrogateescape", opener=opener) as file:
            file.writelines([text] if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise HolmesError(
            f"{path}: cannot be written: {error.strerror or error}", "choose a folder that exists and is writable"
        ) from error


def private_opener(path: str, flags: int) -> int:
    """Open a file for `open`, a new one readable and writable by this user alone, whatever the umask."""
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
    as_written = _read_as_written(cls, path, inside)
    if as_written is not None:
        return as_written
    data = read_plain(path, f"; `{cls.RENEW}` makes it", inside)
    if not isinstance(data, dict) or data.get("kind") != cls.KIND:
        kind = data.get("kind") if isinstance(data, dict) else None
        seen = f"its kind is {kind}" if isinstance(kind, str) else "Holmes did not write it"
        raise HolmesError(f"{path}: not of kind {cls.KIND}: {seen}", f"make one with `{cls.RENEW}`")
    body = {key: value for key, value in data.items() if key not in _HEADER}
    record = parse(cls, body, str(path))
    if data.get("digest") != record.digest():
        raise HolmesError(
            f"{path}: changed since it was written (digest {data.get('digest')!r}, content {record.digest()!r})",
            f"make it again with `{cls.RENEW}`; what you may choose is chosen in hosts.yaml and job.yaml",
        )
    return SignedRecord(record, is_own(cls.KIND, record.digest(), data.get("signature")))


def read_any(classes: Sequence[type[FileRecord]], path: Path, inside: Path | None = None) -> SignedRecord[FileRecord]:
    """Read as `read_signed` does, a file of any of these kinds. Another kind is refused as not of the first."""
    return read_signed(next((cls for cls in classes if _kind_of(path, inside) == cls.KIND), classes[0]), path, inside)


def _kind_of(path: Path, inside: Path | None) -> str | None:
    """Return the kind that the file's first lines claim; None where they claim none, or cannot be read."""
    try:
        with open_regular(path, MAX_OWN_BYTES, inside) as file:
            claimed = _KIND.search(file.read(_HEADER_BYTES))
    except OSError:
        return None
    return claimed[1].decode() if claimed else None


def _read_as_written(cls: type[F], path: Path, inside: Path | None) -> SignedRecord[F] | None:
    """Read the record in a file that is exactly as Holmes wrote it.

    None for any other file: the caller then reads it by the slower way, which explains its errors.
    """
    if path.suffix != ".json":
        return None
    try:
        with (
            open_regular(path, MAX_OWN_BYTES, inside) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
        ):
            if len(text) > MAX_JSON_BYTES and not _claims_to_be_own(text):
                return None
            fields = dict(_fields_as_written(cls, text))
        kind, digest, claimed = (fields.pop(name, None) for name in _HEADER)
        record = cls.model_validate(fields) if kind == cls.KIND else None
    except (OSError, ValueError, RecursionError):
        return None
    if record is None or record.digest() != digest:
        return None
    return SignedRecord(record, is_own(cls.KIND, record.digest(), claimed))


def _claims_to_be_own(text: mmap.mmap) -> bool:
    """Return True if the first lines hold this user's signature of their digest; the content is not yet checked."""
    header = _SIGNED.match(text)
    return header is not None and is_own(*(part.decode() for part in header.groups()))


def _fields_as_written(cls: type[F], text: mmap.mmap) -> Iterator[tuple[str, object]]:
    """Yield the fields of a file that `json_parts` wrote: names at one space of indentation, their records at two.

    One record is read at a time, since all of a large inventory's text and objects would take several times its memory.

    Raises:
        ValueError: The file is laid out otherwise.
    """
    at = 1
    while (key := _KEY.match(text, at)) is not None:
        name, start = key[1].decode(), key.end()
        known = cls.model_fields.get(name)
        item = record_in(known.annotation) if known else None
        found: list[BaseModel] = []
        if item is not None and text[start : start + 2] == b"[\n":
            start += 1
            while text[start : start + 4] == b"\n  {":
                end = text.find(b"\n  }", start) + 4
                if end < start:
                    raise ValueError(f"no end of a record in {name}")
                found.append(item.model_validate_json(_bounded(text[start:end])))
                start = end + (text[end : end + 1] == b",")
        following = _NEXT_KEY.search(text, start)
        if following is None:
            raise ValueError(f"no end of {name}")
        at = following.start()
        rest = text[start:at].removesuffix(b",")
        if found and rest != b"\n ]":
            raise ValueError(f"more than records in {name}: {rest!r}")
        yield name, tuple(found) if found else json_values(rest.decode())


def _bounded(text: bytes) -> bytes:
    """Return `text` unless it holds more values than any record: each could be an error of the parser.

    Raises:
        ValueError: It holds more.
    """
    if text.count(b",") + text.count(b"[") > MAX_VALUES:
        raise ValueError("more values than a record has")
    return text
