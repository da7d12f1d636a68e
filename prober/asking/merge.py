"""Facts of several sources put together: the first source that knows wins, and a later one that differs is kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import fields, replace
from typing import Any, TypeVar

from holmes_core.records.inventory import Conflict

T = TypeVar("T", bound=Any)  # a dataclass whose unknown fields are None or ()


def updated(known: T, more: T) -> T:
    """`known` with all that `more` knows: the way of a later output of the same tool."""
    return replace(known, **{name: value for name, value in vars(more).items() if _is_known(value)})


def filled(known: T, more: T) -> T:
    """`known` with its gaps filled from `more`: the way of a source further down the order."""
    gaps = {name: value for name, value in vars(more).items() if _is_known(value) and not _is_known(vars(known)[name])}
    return replace(known, **gaps)


def merged(subject: str, sources: Iterable[tuple[str, T]], compared: Collection[str]) -> tuple[T, list[Conflict]]:
    """One record of (source, facts) in order of trust, and where the `compared` facts disagree. At least one source."""
    (first_source, known), *rest = sources
    told = {field.name: first_source for field in fields(known) if _is_known(getattr(known, field.name))}
    conflicts = []
    for source, more in rest:
        for name in compared:
            ours, theirs = getattr(known, name), getattr(more, name)
            if _is_known(ours) and _is_known(theirs) and _differs(ours, theirs):
                conflicts.append(
                    Conflict(
                        subject=subject,
                        fact=name,
                        source_a=told[name],
                        value_a=str(ours),
                        source_b=source,
                        value_b=str(theirs),
                    )
                )
        known = filled(known, more)
        for field in fields(known):
            if _is_known(getattr(known, field.name)):
                told.setdefault(field.name, source)
    return known, conflicts


def _is_known(value: object) -> bool:
    return value is not None and value != ()


def _differs(ours: object, theirs: object) -> bool:
    if isinstance(ours, str) and isinstance(theirs, str):
        return ours.casefold() != theirs.casefold()
    return ours != theirs
