"""The way to one node's agent: events come in, commands and a heartbeat go out, a dropped connection is made anew."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

from holmes_core.errors import HolmesError, HostError
from holmes_core.remote.connect import connect
from holmes_core.remote.transport import Connection, Stream
from launcher.nodes.ship import ship
from launcher.prepare.bundle import NodeBundle
from launcher.prepare.prepare import SILENCE_LIMIT_S

HEARTBEAT_S = 2.0
RECONNECT_S = 1.0
REMOVE_TIMEOUT_S = 4.0
END_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Event:
    """One line of a node agent. Ours are: "state", a word on the way to ready, and "gone", no more will come."""

    node_rank: int
    kind: str
    data: dict[str, Any]


class NodeLink:
    """One node of one attempt. `detached`: the agent goes on without us, so we try for ever to come back to it."""

    def __init__(self, bundle: NodeBundle, events: queue.Queue[Event], detached: bool) -> None:
        self.bundle = bundle
        self.opened = False  # the agent was started, or found again
        self.ended = False  # it said that it ends
        self.lost = False  # it is out of reach
        self.heard_s = time.monotonic()  # when it last said something
        self._events = events
        self._detached = detached
        self._connection: Connection | None = None
        self._stream: Stream | None = None
        self._seen = 0
        self._closing = threading.Event()

    def start(self) -> None:
        """Connect, send the files and start the agent. Raises HostError."""
        self._tell("connecting")
        self._connection = connect(self.bundle.node.host, self.bundle.node.access)
        self._tell("sending files")
        ship(self.bundle, self._connection)
        self._tell("preflight")
        self._open(self.bundle.start_command)

    def follow(self, events_seen: int) -> None:
        """Connect to an agent that runs, and go on after the events that were seen. Raises HostError."""
        self._seen = events_seen
        self._connection = connect(self.bundle.node.host, self.bundle.node.access)
        self._open(self.bundle.follow_command(events_seen))

    def _open(self, command: str) -> None:
        assert self._connection is not None
        self._stream = self._connection.open(command)
        self.opened = True
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, **command: Any) -> None:
        """Tell the agent something; nothing happens when it cannot be told."""
        self._write(json.dumps(command).encode() + b"\n")

    def drop(self) -> None:
        """Drop a connection over which nothing comes any more; a new one is tried."""
        if self._stream is not None:
            self._stream.abandon()

    def end(self) -> str | None:
        """End an agent that does not answer, by recorded ids; what could not be ended, None if all is gone."""
        with contextlib.suppress(HolmesError, OSError, EOFError):
            done = self._fresh_connection().run(self.bundle.end_command, b"", END_TIMEOUT_S)
            return done.stdout.decode(errors="replace").strip() or None
        return "not reached"

    def remove_files(self) -> None:
        """Remove the node's folder wherever it may still be."""
        with contextlib.suppress(HolmesError, OSError, EOFError):
            self._fresh_connection().run(self.bundle.remove_command, b"", REMOVE_TIMEOUT_S)

    def close(self) -> None:
        """Drop everything; the agent is not told."""
        self._closing.set()
        if self._stream is not None:
            self._stream.abandon()
        if self._connection is not None:
            self._connection.close()

    def _fresh_connection(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self.bundle.node.host, self.bundle.node.access)
        return self._connection

    def _tell(self, state: str) -> None:
        self._events.put(Event(self.bundle.node.node_rank, "state", {"state": state}))

    def _listen(self) -> None:
        """Hand on every event; when the channel ends before the agent does, make a new one."""
        assert self._stream is not None
        code, stderr = self._hear(self._stream)
        while code is not None and self._seen and not self._closing.is_set():
            self._tell("connection lost")
            if not self._reconnect():
                self.lost = True
                break
            self._tell("connected again")
            code, stderr = self._hear(self._stream)
        self._events.put(Event(self.bundle.node.node_rank, "gone", {"exit_code": code or 0, "stderr": stderr}))

    def _hear(self, stream: Stream) -> tuple[int | None, str]:
        """Hear the channel out; its exit code and errors, or None when the agent has ended."""
        for line in stream.lines():
            self.heard_s = time.monotonic()
            with contextlib.suppress(json.JSONDecodeError):
                data = json.loads(line)
                kind = data.pop("event")
                if kind == "end":
                    self.ended = True
                    return None, ""
                self._seen += 1
                self._events.put(Event(self.bundle.node.node_rank, kind, {**data, "seen": self._seen}))
        return stream.wait()

    def _reconnect(self) -> bool:
        """Whether the agent was found again; an attached one is looked for no longer than it would wait."""
        deadline = time.monotonic() + SILENCE_LIMIT_S
        while self._detached or time.monotonic() < deadline:
            with contextlib.suppress(HostError, OSError, EOFError):
                connection = connect(self.bundle.node.host, self.bundle.node.access)
                stream = connection.open(self.bundle.follow_command(self._seen))
                if self._connection is not None:
                    self._connection.close()
                self._connection, self._stream = connection, stream
                return True
            if self._closing.wait(RECONNECT_S):
                return False
        return False

    def _beat(self) -> None:
        while not self._closing.wait(HEARTBEAT_S):
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError):
            if self._stream is not None:
                self._stream.send(data)
