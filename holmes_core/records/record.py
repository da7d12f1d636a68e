"""Records and their files: strict reading, errors that name file and key, digests, atomic writes.

Two kinds of file. Files people write (hosts.yaml, job.yaml) hold the record alone. Files Holmes writes
(inventory, plan, run) hold a header as well: which record it is, and the digest of the rest, so that a hand
edit is noticed.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import mmap
import os
import re
import secrets
import types
import typing
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Union

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from holmes_core.errors import HolmesError

SCHEMA_VERSION = 1

R = TypeVar("R", bound="Record")
F = TypeVar("F", bound="FileRecord")


class Record(BaseModel):
    """Frozen, and strict about keys: an unknown one is an error that names its nearest neighbour."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def model_post_init(self, _: object, /) -> None:
        """Shares the set of keys given, which records that look alike have in common.

        Pydantic keeps one for each record, and in a large inventory they are three quarters of its memory.
        """
        given = self.model_fields_set
        object.__setattr__(self, "__pydantic_fields_set__", _GIVEN.setdefault(frozenset(given), given))


_GIVEN: dict[frozenset[str], set[str]] = {}


class FileRecord(Record):
    """A record with a file of its own. `KIND` names it in the file, `RENEW` is the command that makes it anew."""

    KIND: ClassVar[str]
    RENEW: ClassVar[str]

    def digest(self) -> str:
        """`sha256:...` over the record as canonical JSON: sorted keys, no spaces, nothing that is at its default.

        A file therefore stays valid when a later Holmes gives the record one more key with a default.
        """
        return self._digest

    @cached_property
    def _digest(self) -> str:
        found, separator = hashlib.sha256(), "{"
        for name in sorted(type(self).model_fields):
            for part in self._canonical(name):
                found.update((separator + part).encode())
                separator = ""
            separator = separator or ","
        found.update(b"}" if separator == "," else b"{}")
        return "sha256:" + found.hexdigest()

    def model_copy(self: F, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> F:
        """A copy, with `update`; it computes its digest anew."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("_digest", None)
        return copied

    def _canonical(self, name: str) -> Iterator[str]:
        """One field as canonical JSON, in parts, since a large plan is too large for copies; nothing at its default."""
        value = getattr(self, name)
        if isinstance(value, tuple) and value and all(isinstance(each, Record) for each in value):
            if value != type(self).model_fields[name].default:
                yield f'"{name}":'
                for index, each in enumerate(value):
                    yield "[,"[index > 0] + _canonical(each.model_dump(mode="json", exclude_defaults=True))
                yield "]"
            return
        body = self.model_dump(mode="json", include={name}, exclude_defaults=True)
        if name in body:
            yield f'"{name}":' + _canonical(body[name])

    def to_json(self) -> str:
        """The text of the record's file: header, then the record, readable and diffable."""
        return "".join(self.json_parts())

    def json_parts(self) -> Iterator[str]:
        """That text in parts, since a large plan is too large to be held as text as well."""
        yield json.dumps({"kind": self.KIND, "digest": self.digest()}, indent=1).removesuffix("\n}")
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, tuple) and value and all(isinstance(each, Record) for each in value):
                yield f',\n "{name}": ['
                for index, each in enumerate(value):
                    yield "," * (index > 0) + "\n  " + each.model_dump_json(indent=1).replace("\n", "\n  ")
                yield "\n ]"
            else:
                yield "," + self.model_dump_json(indent=1, include={name}).removeprefix("{").removesuffix("\n}")
        yield "\n}\n"


_KEY = re.compile(rb'\n "(\w+)": ')  # in the text that `json_parts` makes
_NEXT_KEY = re.compile(rb'\n(?= "|})')


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


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
            f"make it anew with `{cls.RENEW}`; what may be chosen is chosen in hosts.yaml and job.yaml",
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
        item = _model_in(known.annotation) if known else None
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


def parse(cls: type[R], data: object, source: str) -> R:
    """`data` as a record of `cls`; `source` (a file name) is named in the errors."""
    if not isinstance(data, dict):
        raise HolmesError(f"{source}: holds {type(data).__name__}, not keys and values", f"write {_keys(cls)} into it")
    version = data.get("schema_version", SCHEMA_VERSION)
    if "schema_version" in cls.model_fields and version != SCHEMA_VERSION:
        raise HolmesError(
            f"{source}: schema_version {version!r}, this Holmes reads {SCHEMA_VERSION}",
            "use the Holmes that wrote the file, or make the file anew",
        )
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        raise _explain(cls, error, source) from None


def _explain(cls: type[BaseModel], error: ValidationError, source: str) -> HolmesError:
    """One line a fault: key path, value seen, what is wrong; the hint is the nearest valid key where one is unknown."""
    faults, hints = [], []
    for fault in error.errors():
        location = list(fault["loc"])
        path = ".".join(str(part) for part in location) or "(whole file)"
        if fault["type"] == "extra_forbidden":
            model = _model_at(cls, location[:-1])
            near = difflib.get_close_matches(str(location[-1]), list(model.model_fields), n=1, cutoff=0.5)
            faults.append(f"{path}: unknown key (value {_shown(fault['input'])})")
            hints.append(f"did you mean `{near[0]}`?" if near else f"known here: {_keys(model)}")
        elif fault["type"] == "missing":
            faults.append(f"{path}: missing")
            hints.append(f"add `{location[-1]}:`")
        else:
            message = fault["msg"].removeprefix("Value error, ")
            faults.append(f"{path}: {message} (value {_shown(fault['input'])})")
    hint = "; ".join(dict.fromkeys(hints)) or "correct the value"
    return HolmesError(f"{source}: " + "; ".join(faults), hint)


def _model_at(cls: type[BaseModel], location: list[int | str]) -> type[BaseModel]:
    """The model whose keys stand at `location` below `cls`."""
    for part in location:
        if isinstance(part, str) and part in cls.model_fields:
            found = _model_in(cls.model_fields[part].annotation)
            cls = found or cls
    return cls


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The record class inside an annotation such as `tuple[Host, ...]` or `Parallel | None`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    if typing.get_origin(annotation) in (tuple, list, dict, Union, types.UnionType, typing.Annotated):
        for argument in typing.get_args(annotation):
            found = _model_in(argument)
            if found is not None:
                return found
    return None


def _keys(cls: type[BaseModel]) -> str:
    return ", ".join(f"`{name}`" for name in cls.model_fields)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class _UniqueKeyLoader(yaml.SafeLoader):
    """safe_load that refuses a key written twice, where YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    problem = f"key {key!r} stands twice"
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
        raise HolmesError(what, "correct that line, or make the file anew") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        what = f"{path}: {where}not YAML: {problem}"
        raise HolmesError(what, "correct that line (indentation, colons, quotes)") from None
