"""Conversion of plain data to a record, with errors that name source, key, value and the nearest valid key."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, Union

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from holmes_core.errors import HolmesError
from holmes_core.records.record import FileRecord, Record
from holmes_runtime.config.checks import WrongValue
from holmes_runtime.config.field_limits import SharedSettings

SCHEMA_VERSION = 1
MAX_FAULTS = 10  # in one message
MAX_CHARACTERS = 60  # shown of a key or value
_KINDS = {type(None): "is empty", list: "holds a list", str: "holds a text"}

# pydantic's own messages speak of tuples and regular expressions.
_WORDS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list, such as [a, b]"),
    **dict.fromkeys(
        ("dict_type", "model_type", "dataclass_type", "mapping_type"), "must be keys and values, such as {{key: value}}"
    ),
    "string_type": "must be text, in quotes if it is a number",
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must list at least {min_length}",
    "too_long": "must list at most {max_length}",
    "string_too_long": "must have at most {max_length} characters",
}
PATTERNS = {
    "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$": (
        "must be a name of letters, digits, dots, dashes and underscores that begins and ends with a letter or digit"
    ),
    "^[A-Za-z_][A-Za-z0-9_]*$": "must be the name of a variable: letters, digits and underscores, no digit first",
    r"^(/[^:]*|[^/:]+(/[^/:]+)*)\.py:[A-Za-z_]\w*$": "must be FILE.py:FUNCTION",
    r"^[^\n\r\x00]*$": "must be one line",
    "^[!-~]+$": "must be one word of ASCII characters",
    "^/": "must be an absolute path",
    r"^[0-9]{1,2}(\.[0-9]{1,6})?%$": "must be a percentage from 0% to below 100%, such as 0.5%",
}

R = TypeVar("R", bound=Record)


class Places(Protocol):
    """The places of values in a text that a person wrote."""

    def where(self, location: Sequence[int | str]) -> str:
        """Return `line 9: ` or the like for a value, by its keys and indices; nothing where it has no place."""


def parse(cls: type[R], data: object, source: str, places: Places | None = None) -> R:
    """Return `data` as a record of `cls`. Errors name `source` (a file name) and `places`, such as lines."""
    if not isinstance(data, dict):
        kind = _KINDS.get(type(data), "holds a value")
        raise HolmesError(f"{source}: {kind}, not keys and values", _hint(cls, _needed(cls)))
    version = data.get("schema_version", SCHEMA_VERSION)
    if "schema_version" in cls.model_fields and version != SCHEMA_VERSION:
        raise HolmesError(
            f"{source}: schema_version {version!r}, this Holmes reads {SCHEMA_VERSION}",
            "use the Holmes version that wrote the file, or make the file again",
        )
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        raise _explain(cls, error, source, places) from None


def _explain(cls: type[BaseModel], error: ValidationError, source: str, places: Places | None) -> HolmesError:
    """Return the error: line, key path, value and rule of each fault. The hint has the nearest valid key."""
    faults, hints = [], []
    found = _without_echoes(error.errors())
    for fault in found[:MAX_FAULTS]:
        location, refused = list(fault["loc"]), fault.get("ctx", {}).get("error")
        if isinstance(refused, WrongValue):  # by settings with keys inside
            location += [int(part) if part.isdecimal() else part for part in refused.key.split(".")]
            fault["msg"], fault["input"] = refused.rule, refused.value
        path = ".".join(str(part)[:MAX_CHARACTERS] for part in location) or "(whole file)"
        path = places.where(location) + path if places and location else path
        if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            model = _record_at(cls, location[:-1])
            near = difflib.get_close_matches(str(location[-1]), list(fields_of(model)), n=1, cutoff=0.5)
            faults.append(f"{path}: unknown key (value {_shown(fault['input'])})")
            hints.append(f"did you mean `{near[0]}`?" if near else f"known here: {_keys(model)}")
        elif fault["type"] == "missing":
            faults.append(f"{path}: missing")
            hints.append(f"add `{location[-1]}:`")
        else:
            if fault["type"] == "int_parsing" and _is_float(fault["input"]):
                hints.append(f"YAML takes that for text: write {float(fault['input']):.0f}")
            faults.append(f"{path}: {_fault_words(fault)} (value {_shown(fault['input'])})")
    if len(found) > MAX_FAULTS:
        faults.append(f"and {len(found) - MAX_FAULTS} faults more")
    return HolmesError(f"{source}: " + "; ".join(faults), _hint(cls, "; ".join(dict.fromkeys(hints))))


def _fault_words(fault: ErrorDetails) -> str:
    """Return the rule that the value breaks."""
    context, said = fault.get("ctx", {}), fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "string_pattern_mismatch":
        return PATTERNS.get(str(context["pattern"]), said)
    if fault["type"] in _WORDS:
        return _WORDS[fault["type"]].format(**{key: _plain(value) for key, value in context.items()})
    return said


def _plain(value: object) -> object:
    """Return a whole float as an int, so that limits read 0, not 0.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _without_echoes(faults: Iterable[ErrorDetails]) -> list[ErrorDetails]:
    """Drop "too short" faults of lists with faulty entries."""
    faults = list(faults)
    above = {fault["loc"][:end] for fault in faults for end in range(len(fault["loc"]))}
    return [fault for fault in faults if fault["type"] != "too_short" or fault["loc"] not in above]


def _hint(cls: type[BaseModel], hint: str) -> str:
    """Return the hint, or for a file that Holmes writes, the command that makes it again."""
    if issubclass(cls, FileRecord) and cls.RENEW.startswith("holmes "):
        return f"make it again with `{cls.RENEW}`"
    return hint or "correct the value"


def _needed(cls: type[BaseModel]) -> str:
    names = [f"`{name}:`" for name, field in cls.model_fields.items() if field.is_required()]
    return f"it needs at least {', '.join(names)}"


def _is_float(value: object) -> bool:
    """Return True if `value` is text of a whole number with a point or an exponent, `1e3`."""
    with contextlib.suppress(ValueError):
        return isinstance(value, str) and float(value).is_integer()
    return False


def _record_at(cls: type, location: list[int | str]) -> type:
    """Return the model with the keys at `location` below `cls`."""
    for part in location:
        if isinstance(part, str) and part in fields_of(cls):
            found = record_in(fields_of(cls)[part].annotation)
            cls = found or cls
    return cls


def fields_of(cls: type) -> Mapping[str, FieldInfo]:
    """Return the fields of a record, or of settings, by name."""
    if issubclass(cls, BaseModel):
        return cls.model_fields
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    return {field.name: FieldInfo.from_annotated_attribute(hints[field.name], field) for field in fields}


def record_in(annotation: Any) -> type | None:
    """Return the class of a record or of settings in an annotation such as `tuple[Host, ...]` or `Parallel | None`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel | SharedSettings) else None
    if typing.get_origin(annotation) in (tuple, list, dict, Union, types.UnionType, typing.Annotated):
        for argument in typing.get_args(annotation):
            found = record_in(argument)
            if found is not None:
                return found
    return None


def _keys(cls: type) -> str:
    return ", ".join(f"`{name}`" for name in fields_of(cls))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 3] + "..."
