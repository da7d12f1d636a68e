"""Parsed JSON as frozen dataclasses, and nothing that they do not ask for. Free of torch."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


def parse(cls: type[Record], text: str) -> Record:
    """An instance of dataclass `cls` from its JSON `text`. Raises ValueError naming the key path and the value."""
    return _decode_record(cls, json.loads(text, parse_constant=_refuse_constant), "")


@cache
def _type_hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"numbers must be finite, got {name}")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _decode_record(cls: type[Record], data: object, path: str) -> Record:
    """An instance of dataclass `cls` from parsed JSON. Raises ValueError naming the key path and the value."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{path or 'configuration'}: expected an object, got {data!r}")
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    for key, value in data.items():
        if key not in known:
            raise ValueError(f"{_join(path, key)}: unknown key, got {value!r}")
    hints = _type_hints(cls)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name not in data:
            raise ValueError(f"{_join(path, field.name)}: missing from {sorted(data)!r}")
        values[field.name] = _decode(hints[field.name], data[field.name], _join(path, field.name))
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(_join(path, str(error))) from None


def _decode(hint: Any, value: object, path: str) -> Any:
    """`value` as the annotated type `hint`: a record, tuple, optional, literal or scalar. Raises ValueError."""
    if is_dataclass(hint) and isinstance(hint, type):
        return _decode_record(hint, value, path)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        present = next(argument for argument in arguments if argument is not type(None))
        return None if value is None else _decode(present, value, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{path}: expected a list, got {value!r}")
        return tuple(_decode(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{path}: expected an object, got {value!r}")
        return {key: _decode(arguments[1], item, _join(path, key)) for key, item in value.items()}
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise ValueError(f"{path}: expected one of {list(arguments)}, got {value!r}")
        return value
    return _decode_scalar(hint, value, path)


def _decode_scalar(hint: type, value: object, path: str) -> int | float | str | bool:
    """`value` as int, float, str or bool. A whole number may stand for a float; a boolean never for a number."""
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{path}: expected {hint.__name__}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path}: expected a finite number, got {value!r}")
    assert isinstance(value, int | float | str)
    return value
