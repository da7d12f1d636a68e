"""Facts merged from several sources. The first known value wins, and later ones that differ are kept as conflicts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

from holmes_core.records.inventory import Conflict

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Any)  # a record or dataclass whose unknown fields are None or ()


def updated(known: T, more: T) -> T:
    """Return `known` with all facts of `more`, a later output of the same tool."""
    return _with(known, {name: value for name, value in vars(more).items() if _is_known(more, name)})


def filled(known: T, more: T) -> T:
    """Return `known` with its gaps filled from `more`, a less trusted source."""
    gaps = {n: value for n, value in vars(more).items() if _is_known(more, n) and not _is_known(known, n)}
    return _with(known, gaps)


def without(known: T, names: Collection[str]) -> T:
    """Return `known` without the facts of those names."""
    return _with(known, dict.fromkeys(names))


def by_key(facts: Iterable[T], key: Callable[[T], K], join: Callable[[T, T], T]) -> dict[K, T]:
    """Return the facts of each subject. `join` adds later facts of a subject to its earlier ones."""
    known: dict[K, T] = {}
    for each in facts:
        subject = key(each)
        known[subject] = join(known[subject], each) if subject in known else each
    return known


def _with(known: T, facts: Mapping[str, object]) -> T:
    """Return a copy of `known` with `facts` replaced. Unlike `model_copy` it validates, and serves dataclasses too."""
    more: T = type(known)(**{**vars(known), **facts})
    return more


def merged(subject: str, sources: Iterable[tuple[str, T]], compared: Collection[str]) -> tuple[T, list[Conflict]]:
    """Merge one or more (source, facts) in order of trust, and return conflicts among the `compared` facts."""
    (first_source, known), *rest = sources
    source_of = {name: first_source for name in vars(known) if _is_known(known, name)}
    conflicts = []
    for source, more in rest:
        for name in compared:
            ours, theirs = getattr(known, name), getattr(more, name)
            if _is_known(known, name) and _is_known(more, name) and _differs(ours, theirs):
                conflicts.append(
                    Conflict(
                        subject=subject,
                        fact=name,
                        source_a=source_of[name],
                        value_a=str(ours),
                        source_b=source,
                        value_b=str(theirs),
                    )
                )
        known = filled(known, more)
        source_of = {name: source for name in vars(more) if _is_known(more, name)} | source_of
    return known, conflicts


def _is_known(record: Any, name: str) -> bool:
    """Return False for None, and for an empty tuple unless the field has None for not known."""
    value = vars(record)[name]
    return value is not None and (value != () or name in _none_by_default(cast(Hashable, type(record))))


@functools.cache
def _none_by_default(record: type[Any]) -> frozenset[str]:
    """Return the fields in which None stands for not known, so that () is a known value."""
    if is_dataclass(record):
        return frozenset(each.name for each in fields(record) if each.default is None)
    about: Mapping[str, Any] = vars(record).get("__pydantic_fields__", {})
    return frozenset(name for name, each in about.items() if each.default is None)


def _differs(ours: object, theirs: object) -> bool:
    if isinstance(ours, str) and isinstance(theirs, str):
        return ours.casefold() != theirs.casefold()
    return ours != theirs
