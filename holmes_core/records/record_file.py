"""Files of records: atomic writing, and reading that notices what is not as it was written.

Files people write (hosts.yaml, job.yaml) hold the record alone; files Holmes writes (inventory, plan, run) its header
too. The latter are read record by record: the text of a large inventory, and what a parser makes of it, is several
times as large as the inventory.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import secrets
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from holmes_core.errors import HolmesError
from holmes_core.records.parse_record import parse, record_in
from holmes_core.records.record import FileRecord, Record

R = TypeVar("R", bound=Record)
F = TypeVar("F", bound=FileRecord)

_KEY = re.compile(rb'\n "(\w+)": ')  # in the text that `json_parts` makes
_NEXT_KEY = re.compile(rb'\n(?= "|})')


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Write `text`, whole or in parts, to `path` so that readers see the old file or the new one, never a part.

    Raises HolmesError when the folder is missing or not writable.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
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


def read_user_file(cls: type[R], path: Path) -> R:
    """The record in a YAML or JSON file a person wrote. Raises HolmesError naming file, key and value."""
    return parse(cls, _load(path), str(path))


def read_file(cls: type[F], path: Path) -> F:
    """The record in a file Holmes wrote, with kind and digest checked.

    Raises HolmesError if it is another kind of file, or was changed since it was written.
    """
    as_written = _read_as_written(cls, path)
    if as_written is not None:
        return as_written
    data = _load(path, f"; `{cls.RENEW}` makes it")
    if not isinstance(data, dict) or data.get("kind") != cls.KIND:
        kind = data.get("kind") if isinstance(data, dict) else None
        seen = f"its kind is {kind}" if isinstance(kind, str) else "Holmes did not write it"
        raise HolmesError(f"{path}: not of kind {cls.KIND}: {seen}", f"make one with `{cls.RENEW}`")
    body = {key: value for key, value in data.items() if key not in ("kind", "digest")}
    record = parse(cls, body, str(path))
    if data.get("digest") != record.digest():
        raise HolmesError(
            f"{path}: changed since it was written (digest {data.get('digest')!r}, content {record.digest()!r})",
            f"make it again with `{cls.RENEW}`; what you may choose is chosen in hosts.yaml and job.yaml",
        )
    return record


def _read_as_written(cls: type[F], path: Path) -> F | None:
    """The record in a file that is as Holmes wrote it.

    None for any other file, which is then read with more patience, for the sake of its errors.
    """
    if path.suffix != ".json":
        return None
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            fields = dict(_fields_as_written(cls, text))
        kind, digest = fields.pop("kind", None), fields.pop("digest", None)
        record = cls.model_validate(fields) if kind == cls.KIND else None
    except (OSError, ValueError):
        return None
    return record if record is not None and record.digest() == digest else None


def _fields_as_written(cls: type[F], text: mmap.mmap) -> Iterator[tuple[str, object]]:
    """The fields of a file that `json_parts` wrote: names at one space of indentation, the records in them at two.

    One record is read at a time: the text of a large inventory, and what a parser makes of it, is several times as
    large as the inventory. Raises ValueError for a file that is laid out otherwise.
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
                found.append(item.model_validate_json(text[start:end]))
                start = end + (text[end : end + 1] == b",")
        following = _NEXT_KEY.search(text, start)
        if following is None:
            raise ValueError(f"no end of {name}")
        at = following.start()
        rest = text[start:at].removesuffix(b",")
        if found and rest != b"\n ]":
            raise ValueError(f"more than records in {name}: {rest!r}")
        yield name, tuple(found) if found else json.loads(rest)


class _UniqueKeyLoader(yaml.SafeLoader):
    """safe_load that refuses a key written twice, where YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    problem = f"key {key!r} is listed twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep)


def _load(path: Path, make: str = "") -> object:
    """The plain data in a JSON or YAML file; `make` is added to the hint when there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        what = f"{path}: cannot be read: {error.strerror or error}"
        raise HolmesError(what, f"check the path and its permissions{make}") from None
    except UnicodeDecodeError as error:
        raise HolmesError(f"{path}: not text: byte {error.start} is not UTF-8", "save the file as UTF-8") from None
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=_UniqueKeyLoader)
    except json.JSONDecodeError as error:
        what = f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        raise HolmesError(what, "correct that line, or make the file again") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        what = f"{path}: {where}not YAML: {problem}"
        raise HolmesError(what, "correct that line (indentation, colons, quotes)") from None
