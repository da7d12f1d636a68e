"""The hosts a run has lost, and which of them answer again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from holmes_core.errors import HostError
from holmes_core.records.plan import Node
from holmes_core.remote.connect import connect

LOOK_EVERY_S = 5.0


class LostHosts:
    """Hosts are tried in the background, so that a run under way does not wait for them."""

    def __init__(self) -> None:
        self._nodes: tuple[Node, ...] = ()
        self._search: threading.Thread | None = None
        self._found: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(node.host for node in self._nodes))

    def add(self, nodes: Iterable[Node]) -> None:
        self._nodes += tuple(nodes)

    def look(self) -> None:
        """See to it that they are being looked for."""
        if self._nodes and (self._search is None or not self._search.is_alive()):
            self._search = threading.Thread(target=self._find, daemon=True)
            self._search.start()

    def take_found(self) -> tuple[str, ...]:
        """Those that were found since the last time; they are lost no more."""
        found, self._found = self._found, ()
        self._nodes = tuple(node for node in self._nodes if node.host not in found)
        return found

    def _find(self) -> None:
        time.sleep(LOOK_EVERY_S)
        self._found = tuple(node.host for node in self._nodes if _answers(node))


def wait_for(nodes: Sequence[Node]) -> None:
    """Return when all of them answer."""
    while not all(_answers(node) for node in nodes):
        time.sleep(LOOK_EVERY_S)


def _answers(node: Node) -> bool:
    try:
        connect(node.host, node.access).close()
    except HostError:
        return False
    return True
