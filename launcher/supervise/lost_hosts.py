"""The hosts that a run has lost, and those that answer again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from holmes_core.errors import HolmesError
from holmes_core.records.plan import Node
from holmes_core.remote.connect import connect
from launcher.nodes.interrupts import Interrupts

PAUSE_S = 5.0


def answers(node: Node) -> bool:
    """Return True if the node's host can be logged in to."""
    try:
        connect(node.host, node.access).close()
    except HolmesError:
        return False
    return True


def later_in_background(work: Callable[[], None]) -> None:
    """Do the work after a pause, in its own thread."""
    timer = threading.Timer(PAUSE_S, work)
    timer.daemon = True
    timer.start()


class LostHosts:
    """The lost hosts. They are tried in the background, so the run does not wait for them."""

    def __init__(
        self,
        answers: Callable[[Node], bool] = answers,
        in_background: Callable[[Callable[[], None]], None] = later_in_background,
    ) -> None:
        self._answers, self._in_background = answers, in_background
        self._nodes: tuple[Node, ...] = ()
        self._found: tuple[str, ...] = ()
        self._is_looking = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(node.host for node in self._nodes))

    def add(self, nodes: Iterable[Node]) -> None:
        self._nodes += tuple(nodes)

    def look(self) -> None:
        """Start looking for the lost hosts, unless a search is under way."""
        if self._nodes and not self._is_looking:
            self._is_looking = True
            self._in_background(self._find)

    def take_found(self) -> tuple[str, ...]:
        """Return the hosts found since the last call. They are no longer lost."""
        found, self._found = self._found, ()
        self._nodes = tuple(node for node in self._nodes if node.host not in found)
        return found

    def wait_for(self, nodes: Sequence[Node], interrupts: Interrupts) -> None:
        """Wait until all of them answer. Raises KeyboardInterrupt."""
        while not all(self._answers(node) for node in nodes):
            interrupts.pause(PAUSE_S)

    def _find(self) -> None:
        try:
            self._found = tuple(node.host for node in self._nodes if self._answers(node))
        finally:
            self._is_looking = False
