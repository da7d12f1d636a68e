"""Plain data to a record, or an error that names source, key and value, and the nearest valid key."""

from __future__ import annotations

import contextlib
import difflib
import types
import typing
from typing import Any, TypeVar, Union

from pydantic import BaseModel, ValidationError

from holmes_core.errors import HolmesError
from holmes_core.records.record import Record

SCHEMA_VERSION = 1
MOST_FAULTS = 10  # that one message lists
MOST_CHARACTERS = 60  # of a key or value it shows

R = TypeVar("R", bound=Record)


def parse(cls: type[R], data: object, source: str) -> R:
    """`data` as a record of `cls`; `source` (a file name) is named in the errors."""
    if not isinstance(data, dict):
        raise HolmesError(f"{source}: holds {type(data).__name__}, not keys and values", f"write {_keys(cls)} into it")
    version = data.get("schema_version", SCHEMA_VERSION)
    if "schema_version" in cls.model_fields and version != SCHEMA_VERSION:
        raise HolmesError(
            f"{source}: schema_version {version!r}, this Holmes reads {SCHEMA_VERSION}",
            "use the Holmes that wrote the file, or make the file again",
        )
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        raise _explain(cls, error, source) from None


def _explain(cls: type[BaseModel], error: ValidationError, source: str) -> HolmesError:
    """One line a fault: key path, value seen, what is wrong; the hint is the nearest valid key where one is unknown."""
    faults, hints = [], []
    for fault in error.errors()[:MOST_FAULTS]:
        location = list(fault["loc"])
        path = ".".join(str(part)[:MOST_CHARACTERS] for part in location) or "(whole file)"
        if fault["type"] == "extra_forbidden":
            model = _record_at(cls, location[:-1])
            near = difflib.get_close_matches(str(location[-1]), list(model.model_fields), n=1, cutoff=0.5)
            faults.append(f"{path}: unknown key (value {_shown(fault['input'])})")
            hints.append(f"did you mean `{near[0]}`?" if near else f"known here: {_keys(model)}")
        elif fault["type"] == "missing":
            faults.append(f"{path}: missing")
            hints.append(f"add `{location[-1]}:`")
        else:
            message = fault["msg"].removeprefix("Value error, ")
            if fault["type"] == "int_parsing" and _is_float(fault["input"]):
                hints.append(f"YAML takes that for text: write {float(fault['input']):.0f}")
            faults.append(f"{path}: {message} (value {_shown(fault['input'])})")
    if error.error_count() > MOST_FAULTS:
        faults.append(f"and {error.error_count() - MOST_FAULTS} faults more")
    hint = "; ".join(dict.fromkeys(hints)) or "correct the value"
    return HolmesError(f"{source}: " + "; ".join(faults), hint)


def _is_float(value: object) -> bool:
    """Whether that is the text of a whole number with a point or an exponent, `1e3`."""
    with contextlib.suppress(ValueError):
        return isinstance(value, str) and float(value).is_integer()
    return False


def _record_at(cls: type[BaseModel], location: list[int | str]) -> type[BaseModel]:
    """The model whose keys stand at `location` below `cls`."""
    for part in location:
        if isinstance(part, str) and part in cls.model_fields:
            found = record_in(cls.model_fields[part].annotation)
            cls = found or cls
    return cls


def record_in(annotation: Any) -> type[BaseModel] | None:
    """The record class inside an annotation such as `tuple[Host, ...]` or `Parallel | None`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    if typing.get_origin(annotation) in (tuple, list, dict, Union, types.UnionType, typing.Annotated):
        for argument in typing.get_args(annotation):
            found = record_in(argument)
            if found is not None:
                return found
    return None


def _keys(cls: type[BaseModel]) -> str:
    return ", ".join(f"`{name}`" for name in cls.model_fields)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
