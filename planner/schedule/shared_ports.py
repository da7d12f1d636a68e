"""One replica simulated on ports that several of its edges share, which each message has in part.

The host of a middle stage sends activations on and gradients back through one NIC. Messages under way at once get a
max-min fair share of each port, as TCP gives it; a message that is alone has all of it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from holmes_runtime.config.precedence import NOTHING, Precedence

Port = tuple[tuple[int, float], ...]
"""A NIC or a trunk in one direction: the edges that use it, as `Waits` numbers them, and the seconds of a message of
each that has it for itself."""


Rates = tuple[tuple[int, float], ...]
"""Messages per second by edge."""


class SharedPorts(NamedTuple):
    """The ports that several edges of a replica share, and by edge the bytes of a message."""

    ports: tuple[Port, ...]
    message_bytes: tuple[float, ...]


class SharingRun:
    """A replica under way, by the seconds that `follow` of precedence.py takes; `edge_s` are of messages alone.

    Where edges share ports, one message at a time is under way on each: `_left` is the part of it still to leave, by
    edge. The others leave as in `follow`.
    """

    def __init__(
        self,
        precedence: Precedence,
        work_s: Sequence[float],
        edge_s: Sequence[float],
        late_s: Sequence[float],
        least_end_s: Sequence[float],
        shared: SharedPorts,
    ) -> None:
        self._waits, self._next = precedence.waits, successors(precedence)
        self._work_s, self._edge_s, self._late_s, self._least_end_s = work_s, edge_s, late_s, least_end_s
        self._ends_s, self._left_s = ([0.0] * len(self._next.after) for _ in range(2))
        self._acting: list[tuple[float, int]] = []
        self._queues: defaultdict[int, deque[int]] = defaultdict(deque)  # the numbers of a link's messages
        self._sharing = {edge for port in shared.ports for edge, _ in port if edge_s[edge]}
        self._left = [0.0] * len(edge_s)
        self._under_way = 0  # the edges with a message under way, as bits
        self._rates: Rates = ()
        self._rates_of = rates_by_edges(tuple(edge_s), shared)

    def to_end(self) -> tuple[list[float], list[float]]:
        """Run all actions. Return what `follow` does."""
        acting, left, blocked_by, now_s = self._acting, self._left, [*self._next.waits_for], 0.0
        for number in self._next.first:
            self._begin(number)
        # Much of the time of planning several clusters is spent in this loop.
        while acting or self._under_way:
            next_s, sent, rates = acting[0][0] if acting else inf, -1, self._rates
            for edge, rate in rates:
                if (there_s := now_s + left[edge] / rate) < next_s:
                    next_s, sent = there_s, edge
            for edge, rate in rates:
                left[edge] -= (next_s - now_s) * rate
            now_s = next_s
            for number in self._end(heappop(acting)[1], now_s) if sent < 0 else self._leave(sent, now_s):
                blocked_by[number] -= 1
                if not blocked_by[number]:
                    self._begin(number)
        return self._ends_s, self._left_s

    def _begin(self, number: int) -> None:
        before, needed, work, _, _ = self._waits[number - 1]
        now_s, there_s = self._ends_s[before], self._left_s[needed] + self._late_s[work]
        end_s = (there_s if there_s > now_s else now_s) + self._work_s[work]
        least_s = self._least_end_s[work]
        heappush(self._acting, (least_s if least_s > end_s else end_s, number))

    def _end(self, number: int, now_s: float) -> tuple[int, ...]:
        """End the action and queue its message. Return the actions that wait for one thing less."""
        _, _, _, ahead, edge = self._waits[number - 1]
        self._ends_s[number] = now_s
        if edge not in self._sharing:
            free_s = self._left_s[ahead]
            self._left_s[number] = (free_s if free_s > now_s else now_s) + self._edge_s[edge]
            return self._next.after[number], self._next.awaiting[number]
        queue = self._queues[self._next.link_of[edge]]
        queue.append(number)
        if len(queue) == 1:
            self._send(edge)
        return (self._next.after[number],)

    def _send(self, edge: int) -> None:
        self._left[edge] = 1.0
        self._share(self._under_way | 1 << edge)

    def _leave(self, edge: int, now_s: float) -> tuple[int, ...]:
        """Let the edge's message arrive, and the next one of its link leave. Return the action that waits for it."""
        queue = self._queues[self._next.link_of[edge]]
        number = queue.popleft()
        self._left_s[number] = now_s
        self._under_way ^= 1 << edge
        if queue:
            self._send(self._waits[queue[0] - 1][-1])
        else:
            self._share(self._under_way)
        return (self._next.awaiting[number],)

    def _share(self, under_way: int) -> None:
        """Share the ports anew among the edges with a message under way."""
        self._under_way, self._rates = under_way, self._rates_of(under_way)


class Successors(NamedTuple):
    """The actions that follow others, by number, and the link of each edge.

    After an action, its rank runs `after`, and `awaiting` gets its message. It waits for as many things as `waits_for`
    has; those in `first` wait for none. Number 0, which is no action, never gets all it waits for.
    """

    after: list[int]
    awaiting: list[int]
    link_of: dict[int, int]
    waits_for: list[int]
    first: list[int]


@lru_cache(maxsize=64)
def successors(precedence: Precedence) -> Successors:
    """Return the actions that follow each action of the schedule."""
    size, link_of = len(precedence.waits) + 1, dict[int, int]()
    after, awaiting, waits_for = [NOTHING] * size, [NOTHING] * size, [-1] * size
    for number, (before, needed, _, ahead, edge) in enumerate(precedence.waits, 1):
        after[before] = awaiting[needed] = number
        waits_for[number] = (before != NOTHING) + (needed != NOTHING)
        if edge not in link_of:
            link_of[edge] = edge if ahead == NOTHING else link_of[precedence.waits[ahead - 1][-1]]
    return Successors(after, awaiting, link_of, waits_for, [i for i, things in enumerate(waits_for) if not things])


@lru_cache(maxsize=4)
def rates_by_edges(edge_s: tuple[float, ...], shared: SharedPorts) -> Callable[[int], Rates]:
    """Return a function that shares the ports among the edges with a message under way, given as bits."""

    @cache
    def rates(under_way: int) -> Rates:
        return fair_rates([edge for edge in range(len(edge_s)) if under_way >> edge & 1], edge_s, shared)

    return rates


def fair_rates(edges: Sequence[int], edge_s: Sequence[float], shared: SharedPorts) -> Rates:
    """Return by edge the messages per second while each of `edges` has one under way: max-min fair in bytes.

    The rates of all grow together, until one is as fast as alone or a port is full; then those keep theirs.
    """
    sizes, uses_of = shared.message_bytes, _uses_of(shared)
    left = {edge: 1.0 / (edge_s[edge] / sizes[edge]) for edge in edges}  # bytes/s of a message that is alone
    rates: dict[int, float] = {}
    free, growing_s, growing = [1.0] * len(shared.ports), [0.0] * len(shared.ports), [0] * len(shared.ports)
    for edge in edges:
        for port, use_s in uses_of.get(edge, ()):
            growing_s[port] += use_s
            growing[port] += 1
    while left:
        level, full = min(left.values()), None
        for port, count in enumerate(growing):
            if count and (fair := max(0.0, free[port]) / growing_s[port]) < level:
                level, full = fair, port
        is_full = {edge for edge, _ in shared.ports[full]} if full is not None else ()
        for edge in [edge for edge in left if (edge in is_full if full is not None else left[edge] <= level)]:
            rates[edge] = level
            del left[edge]
            for port, use_s in uses_of.get(edge, ()):
                free[port] -= level * use_s
                growing_s[port] -= use_s
                growing[port] -= 1
    return tuple((edge, rate / sizes[edge]) for edge, rate in rates.items())


@lru_cache(maxsize=64)
def _uses_of(shared: SharedPorts) -> dict[int, list[tuple[int, float]]]:
    """Return by edge the numbers of its ports, each with the seconds of a byte that has it for itself."""
    found: dict[int, list[tuple[int, float]]] = {}
    for number, port in enumerate(shared.ports):
        for edge, use_s in port:
            found.setdefault(edge, []).append((number, use_s / shared.message_bytes[edge]))
    return found
