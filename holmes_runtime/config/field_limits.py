"""Limits of the settings that job.yaml and the nodes share, written once, in the types of the fields.

Pydantic applies them to job.yaml, through a hook that does not import pydantic, as nodes do not have it.
`SharedSettings` applies them wherever a record is made.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from holmes_runtime.config.checks import check

MAX_COUNT = 10**9  # limit of any count: more is a mistake
_RULES = {
    "gt": ("must be above", operator.gt),
    "ge": ("must be at least", operator.ge),
    "lt": ("must be below", operator.lt),
    "le": ("must be at most", operator.le),
    "pattern": ("must match", lambda text, pattern: re.search(pattern, text) is not None),
}


class Limits:
    """Limits of a number or text: `gt`, `ge`, `lt`, `le` or `pattern`, with the names that pydantic uses."""

    def __init__(self, **limits: float | str) -> None:
        self._limits = limits

    def check(self, key: str, value: object) -> None:
        """Raise ValueError naming `key` if `value` is outside the limits."""
        for name, limit in self._limits.items():
            words, holds = _RULES[name]
            check(key, value, f"{words} {limit}", holds(value, limit))

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> dict[str, Any]:
        return {**handler(source), **self._limits}


Positive = Annotated[int, Limits(ge=1, le=MAX_COUNT)]
Count = Annotated[int, Limits(ge=0)]
AboveZero = Annotated[float, Limits(gt=0)]
NotNegative = Annotated[float, Limits(ge=0)]
Fraction = Annotated[float, Limits(ge=0, lt=1)]
Percent = Annotated[str, Limits(pattern=r"^[0-9]{1,2}(\.[0-9]{1,6})?%$")]


class SharedSettings:
    """Base of settings: frozen dataclasses with values within the limits. job.yaml may have no other keys."""

    __pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}

    def __post_init__(self) -> None:
        for key, hint in _limited(type(self)):  # type: ignore[arg-type]
            _check(key, getattr(self, key), hint)


@cache
def _limited(cls: type) -> tuple[tuple[str, Any], ...]:
    """Return the fields that have limits, and their types."""
    hints = get_type_hints(cls, include_extras=True)
    return tuple((key, hint) for key, hint in hints.items() if any(_parts(hint)))


def _parts(hint: Any) -> Iterator[Limits]:
    """Yield the limits inside a type."""
    for part in get_args(hint):
        yield from (part,) if isinstance(part, Limits) else _parts(part)


def _words(hint: Any) -> Iterator[object]:
    """Yield the words among a type's literal values."""
    for part in get_args(hint):
        yield from get_args(part) if get_origin(part) is Literal else _words(part)


def _check(key: str, value: Any, hint: Any) -> None:
    """Check `value`; for a mapping, check its values. A word that the type allows has no limits."""
    if value is None or value in _words(hint):
        return
    if get_origin(hint) is dict:
        for name, item in value.items():
            _check(f"{key}.{name}", item, get_args(hint)[1])
        return
    for limits in _parts(hint):
        limits.check(key, value)


class OrAll:
    """The word `all` in place of a number. Errors then mention only the number."""

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> dict[str, Any]:
        return {
            "type": "function-wrap",
            "function": {"type": "no-info", "function": lambda value, read: value if value == "all" else read(value)},
            "schema": handler.generate_schema(get_args(source)[0]),
            "serialization": {"type": "any"},
        }

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [handler(schema["schema"]), {"const": "all"}]}
