"""Keys of the files people write, with type, default, meaning and example, for docs and `holmes job --explain`.

The meaning is the docstring below a record's field, or that of a section's record; the example is at its end. They are
read from the source on demand, since every start of `holmes` would pay for reading them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import yaml
from pydantic import BaseModel

from holmes_core.records.parse_record import fields_of, record_in
from holmes_runtime.config.field_limits import MAX_COUNT, SharedSettings

_EXAMPLE = "Example: "
_SECTIONS = "list of sections"
_NAMES = "names, each with: "
_SIMPLE = {"string": "text", "boolean": "true or false"}
_LIMITS = (
    ("minimum", "at least"),
    ("exclusiveMinimum", "above"),
    ("maximum", "at most"),
    ("exclusiveMaximum", "below"),
)


@dataclass(frozen=True)
class Key:
    """One key of a file. `name` is dotted, with `[]` after a list of sections; `example` is YAML."""

    name: str
    type: str
    default: str
    meaning: str
    example: str
    is_section: bool

    @property
    def section(self) -> str:
        """The name of its section; empty at the top."""
        return self.name.rpartition(".")[0]

    def written(self) -> str:
        """Return the example inside its sections, as in the file; nothing for a section, whose keys have theirs."""
        if not self.example:
            return ""
        value = yaml.safe_load(self.example)
        for part in reversed(self.name.split(".")):
            value = {part.removesuffix("[]"): [value] if part.endswith("[]") else value}
        return yaml.safe_dump(value, sort_keys=False, default_flow_style=None, width=100)


def keys_of(cls: type[BaseModel]) -> tuple[Key, ...]:
    """Return all keys of the record's file, the keys of a section after the section."""
    schema = cls.model_json_schema()
    return tuple(_keys(cls, schema, schema.get("$defs", {}), ""))


def _keys(cls: type, schema: Mapping[str, Any], known: Mapping[str, Any], prefix: str) -> Iterator[Key]:
    documented = _documented(cls)
    for field, info in fields_of(cls).items():
        words = _type_words(schema["properties"][field])
        section = None if words.startswith(_NAMES) else record_in(info.annotation)
        meaning, _, example = documented.get(field, "").partition(_EXAMPLE)
        if section is not None and not meaning:
            meaning = " ".join(inspect.cleandoc(section.__doc__ or "").split())
        default = "required" if info.is_required() else _default(info.get_default(call_default_factory=True))
        yield Key(prefix + field, words, default, meaning.strip(), example.strip(), section is not None)
        if section is not None:
            marks = "[]" if _SECTIONS in words else ""
            yield from _keys(section, known[section.__name__], known, f"{prefix}{field}{marks}.")


def _documented(cls: type) -> dict[str, str]:
    """Return the docstrings below the fields of a record and of those it extends, each on one line."""
    found: dict[str, str] = {}
    for base in cls.__bases__:
        found |= _documented(base) if base is not BaseModel and issubclass(base, BaseModel) else {}
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    for field, below in pairwise(body.body):
        text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else None
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, str):
            found[field.target.id] = " ".join(text.split())
    return found


def _default(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, BaseModel | SharedSettings):
        return "see its keys"
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def _type_words(schema: Mapping[str, Any]) -> str:
    """Return a JSON schema's type in words. Null is left out, as it only expresses a default."""
    options = [option for option in schema.get("anyOf", schema.get("oneOf", ())) if option.get("type") != "null"]
    if options:
        return ", or ".join(map(_type_words, options))
    if "$ref" in schema:
        return "section"
    if "enum" in schema or "const" in schema:
        return _one_of([str(value) for value in schema.get("enum", [schema.get("const")])])
    kind = schema["type"]
    if kind in ("integer", "number"):
        return ", ".join(["whole number" if kind == "integer" else "number", *_limits(schema)])
    if kind == "array":
        several = schema.get("prefixItems")
        return f"list of {len(several)}: {_type_words(several[0])}" if several else _list_words(schema["items"])
    if kind == "object":
        values = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")][0]
        return f"{_NAMES}{_type_words(values)}"
    return str(schema.get("format", _SIMPLE[kind]))


def _list_words(items: Mapping[str, Any]) -> str:
    words = _type_words(items)
    return _SECTIONS if words == "section" else f"list, each: {words}"


def _limits(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield `at least 1`, `below 5`; the general limit on counts is left out."""
    for key, words in _LIMITS:
        if key in schema and schema[key] != MAX_COUNT:
            limit = schema[key]
            yield f"{words} {int(limit) if float(limit).is_integer() else limit}"


def _one_of(values: Sequence[str]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}" if len(values) > 1 else values[0]
