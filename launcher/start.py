"""Start every node's agent, all at once, and hold back the ranks until every node has said it is ready."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from holmes_core.errors import HolmesError, HostError
from holmes_core.transport import Connection, Stream, connect
from launcher.bundle import NodeBundle
from launcher.ship import runtime_files, ship

HEARTBEAT_S = 2.0
READY_TIMEOUT_S = 60.0
REMOVE_TIMEOUT_S = 2.0

Progress = Callable[[str, str], None]


@dataclass(frozen=True)
class Event:
    """One line of a node agent. `kind` "gone" is ours: the agent's output has ended."""

    node_rank: int
    kind: str
    data: dict[str, Any]


class RunningNodes:
    """The agents of one run: their events in one queue, a heartbeat to each, and the ways to let go of them."""

    def __init__(self, bundles: Sequence[NodeBundle]) -> None:
        self.bundles = tuple(bundles)
        self.events: queue.Queue[Event] = queue.Queue()
        self._connections: dict[int, Connection] = {}
        self._streams: dict[int, Stream] = {}
        self._closing = threading.Event()

    def open(self, bundle: NodeBundle, runtime: dict[str, str], progress: Progress) -> None:
        """Connect, ship and start one node's agent. Raises HostError."""
        rank, host = bundle.node.node_rank, bundle.node.host
        progress(host, "connecting")
        connection = connect(host, bundle.node.access)
        self._connections[rank] = connection
        progress(host, "sending the runtime")
        ship(bundle, runtime, connection)
        progress(host, "checking the node")
        stream = connection.open(bundle.start_command)
        self._streams[rank] = stream
        threading.Thread(target=self._listen, args=(rank, stream), daemon=True).start()
        threading.Thread(target=self._beat, args=(stream,), daemon=True).start()

    def go(self) -> None:
        """Let the ranks start on every node."""
        for stream in self._streams.values():
            stream.send(b"go\n")

    def end_input(self) -> None:
        """Tell every agent to end its ranks and remove its files."""
        self._closing.set()
        for stream in self._streams.values():
            stream.close_input()

    def close(self) -> None:
        """Drop all connections."""
        self._closing.set()
        for stream in self._streams.values():
            stream.abandon()
        for connection in self._connections.values():
            connection.close()

    @property
    def started(self) -> frozenset[int]:
        """Node ranks whose agent was started."""
        return frozenset(self._streams)

    def remove_files(self) -> None:
        """Remove the run's folder wherever it may still be; its agent has done so unless it was killed."""
        with ThreadPoolExecutor(max_workers=64) as pool:
            list(pool.map(self._remove_files_of, self._connections))

    def _remove_files_of(self, node_rank: int) -> None:
        with contextlib.suppress(HolmesError, OSError, EOFError):
            self._connections[node_rank].run(self.bundles[node_rank].remove_command, b"", REMOVE_TIMEOUT_S)

    def _listen(self, node_rank: int, stream: Stream) -> None:
        for line in stream.lines():
            with contextlib.suppress(json.JSONDecodeError):
                data = json.loads(line)
                self.events.put(Event(node_rank, data.pop("event"), data))
        code, stderr = stream.wait()
        self.events.put(Event(node_rank, "gone", {"exit_code": code, "stderr": stderr}))

    def _beat(self, stream: Stream) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError):
            while not self._closing.wait(HEARTBEAT_S):
                stream.send(b"\n")


def start(nodes: RunningNodes, progress: Progress) -> None:
    """Bring every node to ready, then let the ranks go. Raises HolmesError if any node cannot; then none has begun."""
    runtime = runtime_files()
    with ThreadPoolExecutor(max_workers=min(64, len(nodes.bundles))) as pool:
        jobs = [pool.submit(nodes.open, bundle, runtime, progress) for bundle in nodes.bundles]
        errors = [job.exception() for job in jobs]
    for error in errors:
        if error is not None:
            raise error
    _wait_until_ready(nodes, progress)
    nodes.go()


def _wait_until_ready(nodes: RunningNodes, progress: Progress) -> None:
    waiting = {bundle.node.node_rank for bundle in nodes.bundles}
    while waiting:
        try:
            event = nodes.events.get(timeout=READY_TIMEOUT_S)
        except queue.Empty:
            host = nodes.bundles[min(waiting)].node.host
            text = f"not ready after {READY_TIMEOUT_S:g} s"
            raise HostError(host, "HOST-SLOW", text, "see what keeps Python there from starting") from None
        node = nodes.bundles[event.node_rank].node
        if event.kind == "ready":
            waiting.discard(event.node_rank)
            progress(node.host, "ready")
        elif event.kind == "refused":
            raise HostError(node.host, "HOST-OS-LIB", event.data["what"], event.data["hint"])
        elif event.kind == "gone":
            raise HostError(
                node.host,
                "HOST-OS-LIB",
                f"`{node.access.python}` could not start the node agent (exit code {event.data['exit_code']}): "
                f"{_last_line(event.data['stderr'])}",
                "install Python >= 3.10 there, or name it: `python: /path/to/python` in hosts.yaml, and probe again",
            )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
