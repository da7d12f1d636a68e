"""One replica simulated on ports that several of its edges share, each message with a part of the port's rate.

The host of a middle stage sends activations on and gradients back through one NIC. Simultaneous messages get a max-min
fair share of each port, as with TCP. A message that is alone gets the whole port.
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
"""A NIC or a trunk in one direction: the edges that use it, numbered as in `Waits`, and the seconds of a message of
each that has the port to itself."""


Rates = tuple[tuple[int, float], ...]
"""Messages per second by edge."""


class SharedPorts(NamedTuple):
    """The ports that several edges of a replica share, and the bytes of a message by edge."""

    ports: tuple[Port, ...]
    message_bytes: tuple[float, ...]


class SharingRun:
    """A running replica, with the arguments of `follow` in precedence.py. `edge_s` are the seconds of lone messages.

    On each edge that shares ports, one message at a time is being sent; `_left` is the unsent part of it. Messages on
    other edges leave as in `follow`.
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
        self._under_way = 0  # the edges with a message being sent, as bits
        self._rates: Rates = ()
        self._rates_of = rates_by_edges(tuple(edge_s), shared)

    def to_end(self) -> tuple[list[float], list[float]]:
        """Run all actions. Return the same as `follow`."""
        acting, left, blocked_by, now_s = self._acting, self._left, [*self._next.waits_for], 0.0
        for number in self._next.first:
            self._begin(number)
        # Planning for several clusters spends much of its time in this loop.
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
        """End the action and queue its message. Return the actions that now wait for one thing less."""
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
        """Let the edge's message arrive, and the link's next message leave. Return the action that waits for it."""
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
        """Divide the ports among the edges that are now sending a message."""
        self._under_way, self._rates = under_way, self._rates_of(under_way)


class Successors(NamedTuple):
    """The actions that follow others, by number, and the link of each edge.

    After an action, its rank runs `after`, and `awaiting` gets its message. An action waits for `waits_for` things;
    those in `first` wait for none. Number 0 is no action and never starts.
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
    """Return a function that divides the ports among the edges that are sending, given as bits."""

    @cache
    def rates(under_way: int) -> Rates:
        return fair_rates([edge for edge in range(len(edge_s)) if under_way >> edge & 1], edge_s, shared)

    return rates


def fair_rates(edges: Sequence[int], edge_s: Sequence[float], shared: SharedPorts) -> Rates:
    """Return the messages per second by edge while each of `edges` is sending one: max-min fair in bytes.

    All rates grow together until one is as fast as alone or a port is full. The affected rates then stay as they are.
    """
    sizes, uses_of = shared.message_bytes, _uses_of(shared)
    left = {edge: 1.0 / (edge_s[edge] / sizes[edge]) for edge in edges}  # bytes/s of a lone message
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
    """Return the numbers of each edge's ports, each with the seconds of a byte that has the port to itself."""
    found: dict[int, list[tuple[int, float]]] = {}
    for number, port in enumerate(shared.ports):
        for edge, use_s in port:
            found.setdefault(edge, []).append((number, use_s / shared.message_bytes[edge]))
    return found
