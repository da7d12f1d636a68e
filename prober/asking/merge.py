"""Facts of several sources put together: the first source that knows wins, and a later one that differs is kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

from holmes_core.records.inventory import Conflict

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Any)  # a record or dataclass whose unknown fields are None or ()


def updated(known: T, more: T) -> T:
    """`known` with all that `more` knows: for a later output of the same tool."""
    return _with(known, {name: value for name, value in vars(more).items() if _is_known(more, name)})


def filled(known: T, more: T) -> T:
    """`known` with its gaps filled from `more`: for a source that is trusted less."""
    gaps = {n: value for n, value in vars(more).items() if _is_known(more, n) and not _is_known(known, n)}
    return _with(known, gaps)


def without(known: T, names: Collection[str]) -> T:
    """`known` with the facts of those names not known."""
    return _with(known, dict.fromkeys(names))


def by_key(facts: Iterable[T], key: Callable[[T], K], join: Callable[[T, T], T]) -> dict[K, T]:
    """Return the facts of each subject. `join` adds later facts of a subject to its earlier ones."""
    known: dict[K, T] = {}
    for each in facts:
        subject = key(each)
        known[subject] = join(known[subject], each) if subject in known else each
    return known


def _with(known: T, facts: Mapping[str, object]) -> T:
    """`known` with `facts` in place of its own."""
    more: T = type(known)(**{**vars(known), **facts})
    return more


def merged(subject: str, sources: Iterable[tuple[str, T]], compared: Collection[str]) -> tuple[T, list[Conflict]]:
    """One record of (source, facts) in order of trust, and where the `compared` facts disagree. At least one source."""
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
    """An empty tuple is what a field without knowledge has, unless that is None: then it says that there is none."""
    value = vars(record)[name]
    return value is not None and (value != () or name in _where_nothing_is_known(cast(Hashable, type(record))))


@functools.cache
def _where_nothing_is_known(record: type[Any]) -> frozenset[str]:
    """The fields in which None stands for not known, so that () is knowledge."""
    if is_dataclass(record):
        return frozenset(each.name for each in fields(record) if each.default is None)
    about: Mapping[str, Any] = vars(record).get("__pydantic_fields__", {})
    return frozenset(name for name, each in about.items() if each.default is None)


def _differs(ours: object, theirs: object) -> bool:
    if isinstance(ours, str) and isinstance(theirs, str):
        return ours.casefold() != theirs.casefold()
    return ours != theirs
