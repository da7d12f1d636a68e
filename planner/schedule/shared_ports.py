"""One replica simulated on ports that several of its edges share, which each message has in part.

The host of a middle stage sends activations on and gradients back through one NIC. Messages under way at once get a
max-min fair share of each port, as TCP gives it; a message that is alone has all of it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import lru_cache
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
        self._waits, self._work_s, self._edge_s = precedence.waits, work_s, edge_s
        self._late_s, self._least_end_s, self._shared = late_s, least_end_s, shared
        size = len(self._waits) + 1
        self._ends_s, self._left_s = [0.0] * size, [0.0] * size
        self._after, self._awaiting, self._link_of = successors(precedence)
        self._blocked_by = [0, *((before != NOTHING) + (needed != NOTHING) for before, needed, *_ in self._waits)]
        self._acting: list[tuple[float, int]] = []
        self._queues: defaultdict[int, deque[int]] = defaultdict(deque)  # the numbers of a link's messages
        self._sharing = {edge for port in shared.ports for edge, _ in port if edge_s[edge]}
        self._left = [0.0] * len(edge_s)
        self._under_way = 0  # the edges with a message under way, as bits
        self._rates: Rates = ()
        self._known: dict[int, Rates] = {0: ()}
        self._now_s = 0.0

    def to_end(self) -> tuple[list[float], list[float]]:
        """Run all actions. Return what `follow` does."""
        for number, blocked_by in enumerate(self._blocked_by[1:], 1):
            if not blocked_by:
                self._begin(number)
        acting, left = self._acting, self._left
        while acting or self._under_way:
            next_s, now_s, sent = acting[0][0] if acting else inf, self._now_s, -1
            for edge, rate in self._rates:
                if (there_s := now_s + left[edge] / rate) < next_s:
                    next_s, sent = there_s, edge
            for edge, rate in self._rates:
                left[edge] -= (next_s - now_s) * rate
            self._now_s = next_s
            if sent < 0:
                self._end(heappop(acting)[1])
            else:
                self._leave(sent)
        return self._ends_s, self._left_s

    def _begin(self, number: int) -> None:
        before, needed, work, *_ = self._waits[number - 1]
        start_s = max(self._ends_s[before], self._left_s[needed] + self._late_s[work])
        heappush(self._acting, (max(start_s + self._work_s[work], self._least_end_s[work]), number))

    def _unblock(self, number: int) -> None:
        """Take away one of the two things the action waits for, if there is such an action."""
        if number != NOTHING:
            self._blocked_by[number] -= 1
            if not self._blocked_by[number]:
                self._begin(number)

    def _end(self, number: int) -> None:
        *_, ahead, edge = self._waits[number - 1]
        self._ends_s[number] = self._now_s
        self._unblock(self._after[number])
        if edge in self._sharing:
            queue = self._queues[self._link_of[edge]]
            queue.append(number)
            if len(queue) == 1:
                self._send(edge)
        else:
            self._left_s[number] = max(self._now_s, self._left_s[ahead]) + self._edge_s[edge]
            self._unblock(self._awaiting[number])

    def _send(self, edge: int) -> None:
        self._left[edge] = 1.0
        self._share(self._under_way | 1 << edge)

    def _leave(self, edge: int) -> None:
        """Let the edge's message arrive, and the next one of its link leave."""
        queue = self._queues[self._link_of[edge]]
        number = queue.popleft()
        self._left_s[number] = self._now_s
        self._under_way ^= 1 << edge
        if queue:
            self._send(self._waits[queue[0] - 1][-1])
        else:
            self._share(self._under_way)
        self._unblock(self._awaiting[number])

    def _share(self, under_way: int) -> None:
        """Share the ports anew among the edges with a message under way."""
        self._under_way = under_way
        if under_way not in self._known:
            edges = [edge for edge in range(len(self._edge_s)) if under_way >> edge & 1]
            self._known[under_way] = fair_rates(edges, self._edge_s, self._shared)
        self._rates = self._known[under_way]


@lru_cache(maxsize=64)
def successors(precedence: Precedence) -> tuple[list[int], list[int], dict[int, int]]:
    """Return by number the next action on the rank and the action that waits for its message, and by edge its link."""
    size, link_of = len(precedence.waits) + 1, dict[int, int]()
    after, awaiting = [NOTHING] * size, [NOTHING] * size
    for number, (before, needed, _, ahead, edge) in enumerate(precedence.waits, 1):
        after[before] = awaiting[needed] = number
        if edge not in link_of:
            link_of[edge] = edge if ahead == NOTHING else link_of[precedence.waits[ahead - 1][-1]]
    return after, awaiting, link_of


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
