"""Strict conversion of records (frozen dataclasses and named tuples) to JSON and back.

If a field may hold several kinds of record, the JSON names one by its "kind". Free of torch, and of `dataclasses`,
which would slow the start of the node agent.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from holmes_runtime.config.checks import SHOWN_CHARACTERS, shown

KIND = "kind"
MAX_VALUES = 3_000_000  # in a message: a log line may have 2 MiB of commas; an empty list takes 64 bytes
MAX_INT = 1 << 100  # sums of such integers still fit a float, as errors and screens may need
Record = TypeVar("Record")


def parse(cls: type[Record], text: str, max_values: int | None = None) -> Record:
    """Parse a record of `cls` from its JSON `text`. Raises ValueError naming the key path and the value.

    Text from outside may hold at most `max_values` values: a value takes many times its text in memory.
    """
    record: Record = decode(cls, loads(text, max_values), "")
    return record


def parse_one_of(kinds: tuple[type[Record], ...], text: str) -> Record:
    """Parse one of the records `kinds` from text that `to_json` wrote with its kind. Raises ValueError like `parse`."""
    return _decode_one_of(kinds, loads(text, MAX_VALUES), "")


def to_json(record: object, with_kind: bool = False) -> str:
    """Return one line of text for `parse` or `parse_one_of` to read. Raises ValueError for NaN or infinity."""
    return json.dumps(_encode_kind(record) if with_kind else encode(type(record), record), allow_nan=False)


def encode(hint: Any, value: Any) -> Any:
    """Return `value`, which has the annotated type `hint`, as plain data for `json.dumps`."""
    if value is None or isinstance(value, str | int | float):
        return value
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        present = [argument for argument in arguments if argument is not type(None)]
        return encode(present[0], value) if len(present) == 1 else _encode_kind(value)
    if origin is tuple:
        return [encode(arguments[0], item) for item in value]
    if origin is dict:
        return {key: encode(arguments[1], item) for key, item in value.items()}
    return {name: encode(of, getattr(value, name)) for name, of in _fields(hint).items()}


def _encode_kind(record: object) -> dict[str, object]:
    return {KIND: type(record).__name__, **encode(type(record), record)}


def loads(text: str, max_values: int | None = None) -> object:
    """Parse JSON. Raises ValueError if it is malformed, deeply nested, or may hold more than `max_values` values.

    Commas in strings count as values too.
    """
    if max_values is not None and sum(map(text.count, ",[{")) > max_values:
        raise ValueError(f"more than {max_values} values")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@cache
def _fields(cls: Any) -> dict[str, Any]:
    """Return the fields of a record with their types."""
    hints = get_type_hints(cls)
    return {name: hints[name] for name in getattr(cls, "_fields", ()) or getattr(cls, "__dataclass_fields__", ())}


def _is_record(hint: Any) -> bool:
    return hasattr(hint, "_fields") or hasattr(hint, "__dataclass_fields__")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"numbers must be finite, got {name}")


def _join(path: str, key: str) -> str:
    key = key[:SHOWN_CHARACTERS]
    return f"{path}.{key}" if path else key


def _decode_record(cls: type[Record], data: object, path: str) -> Record:
    """Return a record of `cls` from parsed JSON. Raises ValueError naming the key path and the value."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{path or cls.__name__}: expected an object, got {shown(data)}")
    hints = _fields(cls)  # type: ignore[arg-type]
    for key, value in data.items():
        if key not in hints:
            raise ValueError(f"{_join(path, key)}: unknown key, got {shown(value)}")
    values: dict[str, Any] = {}
    for name, hint in hints.items():
        if name not in data:
            raise ValueError(f"{_join(path, name)}: missing from {shown(sorted(data))}")
        values[name] = decode(hint, data[name], _join(path, name))
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{path}.{error}" if path else str(error)) from None


def _decode_one_of(kinds: tuple[type[Record], ...], data: object, path: str) -> Record:
    """Return the record of one of `kinds` that the parsed JSON names."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{path or 'text'}: expected an object, got {shown(data)}")
    names = {cls.__name__: cls for cls in kinds}
    kind = data.get(KIND)
    if not isinstance(kind, str) or kind not in names:
        raise ValueError(f"{_join(path, KIND)}: expected one of {list(names)}, got {shown(kind)}")
    rest = {key: value for key, value in data.items() if key != KIND}
    return _decode_record(names[kind], rest, _join(path, kind))


def decode(hint: Any, value: object, path: str) -> Any:
    """Return `value` as the annotated type `hint`: a record, tuple, optional, literal or scalar. Raises ValueError."""
    if _is_record(hint):
        return _decode_record(hint, value, path)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, value, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{path}: expected a list, got {shown(value)}")
        return tuple(decode(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{path}: expected an object, got {shown(value)}")
        names, items = arguments
        return {decode(names, key, path): decode(items, item, _join(path, key)) for key, item in value.items()}
    if origin is Literal:
        if type(value) is not type(arguments[0]) or value not in arguments:
            raise ValueError(f"{path}: expected one of {list(arguments)}, got {shown(value)}")
        return value
    return _decode_scalar(hint, value, path)


def _decode_union(hints: tuple[Any, ...], value: object, path: str) -> Any:
    """Return `value` as one of the types `hints`: a record by its kind, other types by their JSON type."""
    if value is None and type(None) in hints:
        return None
    present = tuple(hint for hint in hints if hint is not type(None))
    if str in present and len(present) > 1:
        present = (str,) if isinstance(value, str) else tuple(hint for hint in present if hint is not str)
    return decode(present[0], value, path) if len(present) == 1 else _decode_one_of(present, value, path)


def _decode_scalar(hint: type, value: object, path: str) -> int | float | str | bool:
    """Return `value` as int, float, bool, str, or a text checked by its own type.

    An integer may stand for a float; a boolean never stands for a number.
    """
    if isinstance(value, str) and hint is str:
        return _text(value, path)
    if isinstance(value, str) and issubclass(hint, str):
        try:
            return hint(_text(value, path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = _finite(value, path)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{path}: expected {hint.__name__}, got {shown(value)}")
    assert isinstance(value, int | float)
    if hint is int and abs(value) > MAX_INT:
        raise ValueError(f"{path}: expected a number of at most 100 bits, got {shown(value)}")
    return _finite(value, path) if hint is float else value


def _finite(value: float, path: str) -> float:
    """Return a finite float. Raises ValueError, also for an integer that does not fit a float."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{path}: expected a finite number, got {shown(value)}")
    return number


def _text(value: str, path: str) -> str:
    """Return `value`. Raises ValueError for a lone surrogate, which no file or terminal accepts."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{path}: expected text, got {shown(value)}") from None
    return value
