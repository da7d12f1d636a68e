"""Records: frozen and strict about keys; those with a file of their own have a digest and a text.

A record's file also holds a header: the kind of record, a digest of the rest that reveals a hand edit, and the
writer's signature (`own_key.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

R = TypeVar("R", bound="Record")
F = TypeVar("F", bound="FileRecord")


class Record(BaseModel):
    """Frozen, and strict about keys: an unknown one is an error that names its nearest neighbour."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def model_post_init(self, _: object, /) -> None:
        """Share the set of given keys among records that have the same ones.

        Pydantic keeps one set for each record: three quarters of a large inventory's memory.
        """
        given = self.__pydantic_fields_set__
        object.__setattr__(self, "__pydantic_fields_set__", _GIVEN.setdefault(tuple(given), given))

    def model_copy(self: R, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> R:
        """Return a copy with `update`, as Pydantic does, but with a shared set of given keys."""
        if deep:
            return super().model_copy(update=update, deep=deep)
        copied, changed = type(self).__new__(type(self)), update or {}
        object.__setattr__(copied, "__dict__", {**self.__dict__, **changed})
        object.__setattr__(copied, "__pydantic_extra__", None)
        object.__setattr__(copied, "__pydantic_private__", None)
        object.__setattr__(copied, "__pydantic_fields_set__", self.__pydantic_fields_set__ | changed.keys())
        copied.model_post_init(None)
        return copied


_GIVEN: dict[tuple[str, ...], set[str]] = {}  # by names in the order of the set, which is quicker than a frozen one


class SparseRecord(Record):
    """A record that leaves empty `RARE` fields out of its text, as in files from before these fields existed."""

    RARE: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_empty(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        fields: dict[str, object] = serialize(self)
        empty = [name for name in self.RARE if not getattr(self, name)]
        return {name: value for name, value in fields.items() if name not in empty} if empty else fields


class FileRecord(SparseRecord):
    """A record with a file of its own. `KIND` names it in the file; the command `RENEW` makes it again."""

    KIND: ClassVar[str]
    RENEW: ClassVar[str]

    def digest(self) -> str:
        """Return `sha256:...` of the record as canonical JSON: sorted keys, no spaces, no values at their defaults.

        A file therefore stays valid when a later Holmes gives the record one more key with a default.
        """
        return self._digest

    def source_digest(self) -> str:
        """Return the digest that things made from this record keep of it. While it is unchanged, they are not stale."""
        return self.digest()

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
        """Return a copy with `update`, which computes its digest and other cached values again."""
        copied = super().model_copy(update=update, deep=deep)
        for cached in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[cached]
        return copied

    def _canonical(self, name: str) -> Iterator[str]:
        """Yield one field as canonical JSON in parts, as a large plan is too large for copies; no defaults."""
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
        """Return the text of the record's file: header, then the record, readable and diffable."""
        return "".join(self.json_parts())

    def json_parts(self, signature: str | None = None) -> Iterator[str]:
        """Yield that text in parts, as a large plan is too large to be held as text as well; signed if asked.

        The header is the first line. Each record of a tuple has a line of its own, which readers parse on its own.
        """
        header = {"kind": self.KIND, "digest": self.digest()} | ({"signature": signature} if signature else {})
        yield json.dumps(header).removesuffix("}")
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, tuple) and value and all(isinstance(each, Record) for each in value):
                yield f',\n "{name}": ['
                for index, each in enumerate(value):
                    yield "," * (index > 0) + "\n  " + each.model_dump_json()
                yield "\n ]"
            else:
                body = self.model_dump_json(indent=1, include={name}).removeprefix("{").removesuffix("}")
                yield "," * bool(body) + body.removesuffix("\n")  # nothing where the serializer leaves the field out
        yield "\n}\n"


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
