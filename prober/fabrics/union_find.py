"""Disjoint sets that are joined step by step."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class UnionFind(Generic[T]):
    """Members, each in its own set until it is joined with another."""

    def __init__(self, members: Iterable[T]) -> None:
        self._above: dict[T, T] = {member: member for member in members}

    def root(self, member: T) -> T:
        """Return the representative of the member's set."""
        while self._above[member] != member:
            self._above[member] = self._above[self._above[member]]
            member = self._above[member]
        return member

    def join(self, members: Iterable[T]) -> None:
        """Join the sets of the members."""
        roots = [self.root(member) for member in members]
        for other in roots[1:]:
            self._above[self.root(other)] = self.root(roots[0])

    def groups(self) -> list[tuple[T, ...]]:
        """Return the sets, each with its members in the order given."""
        found: dict[T, list[T]] = {}
        for member in self._above:
            found.setdefault(self.root(member), []).append(member)
        return [tuple(group) for group in found.values()]
