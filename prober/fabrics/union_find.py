"""Sets of things that are joined step by step."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class UnionFind(Generic[T]):
    """Things, each in its own set until it is joined with another."""

    def __init__(self, things: Iterable[T]) -> None:
        self._above: dict[T, T] = {thing: thing for thing in things}

    def root(self, thing: T) -> T:
        """The representative of this thing's set. Raises KeyError for a thing in no set."""
        while self._above[thing] != thing:
            self._above[thing] = self._above[self._above[thing]]
            thing = self._above[thing]
        return thing

    def join(self, things: Iterable[T]) -> None:
        """Join the sets of the things; do nothing without things."""
        roots = [self.root(thing) for thing in things]
        for other in roots[1:]:
            self._above[self.root(other)] = self.root(roots[0])

    def groups(self) -> list[tuple[T, ...]]:
        """The sets, things in the order they were given."""
        found: dict[T, list[T]] = {}
        for thing in self._above:
            found.setdefault(self.root(thing), []).append(thing)
        return [tuple(group) for group in found.values()]
