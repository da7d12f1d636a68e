"""The connection to one node's agent: it receives messages, sends commands and heartbeats, and reconnects."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass

from holmes_core.errors import HolmesError, HostError
from holmes_core.remote.connect import connect
from holmes_core.remote.transport import MAX_SHOWN, Connection, Stream, last_lines
from holmes_runtime.config.islands.rendezvous_messages import EVERY_CONNECTION, FromMeeting
from holmes_runtime.config.messages import (
    NO_FOLDER,
    AgentEnded,
    Command,
    Message,
    NotKept,
    decode_message,
    encode,
)
from launcher.nodes.ship import ship
from launcher.prepare.bundle import NodeBundle
from launcher.prepare.prepare import SILENCE_LIMIT_S

HEARTBEAT_S = 2.0
RECONNECT_S = 1.0
PAUSE_S = 0.01  # between looks at a full queue
REMOVE_TIMEOUT_S = 4.0
END_TIMEOUT_S = 15.0
MAX_HEARD = 10_000  # messages queued here; more wait on the node
MAX_HEARD_CHARACTERS = 1 << 24  # in queued messages, so fewer long ones are queued
MAX_SKIPPED = 20  # lines kept of output that is not a message


@dataclass(frozen=True)
class LinkState:
    """The state of the connection to a node, in one or two words."""

    state: str


@dataclass(frozen=True)
class LinkBroken:
    """The connection to a node broke, and the link tries to reconnect. `stderr` is from the transport."""

    stderr: str


@dataclass(frozen=True)
class Unreadable:
    """A node sent an invalid message; `reason` says why it is invalid. Nothing more is read from the node."""

    reason: str


@dataclass(frozen=True)
class LinkClosed:
    """The connection to a node has ended for good.

    If `agent_ended`, the agent reported its end. Otherwise its command ended with `exit_code` and `stderr`.
    """

    exit_code: int
    stderr: str
    agent_ended: bool


LinkWord = LinkState | LinkBroken | Unreadable | LinkClosed


@dataclass(frozen=True)
class NodeMessage:
    """A message from a node, received at `heard_s` on the monotonic clock.

    `number` counts the agent's own messages from 1. It is None for messages of the link itself.
    """

    node_rank: int
    message: Message | LinkWord
    heard_s: float
    number: int | None = None


class NodeLink:
    """The link to one node in one attempt. A `detached` agent outlives its controller: reconnect forever."""

    def __init__(self, bundle: NodeBundle, heard: queue.Queue[NodeMessage], detached: bool) -> None:
        self.bundle = bundle
        self.opened = False  # the agent was started or found again
        self.ended = False  # the agent reported its end
        self.lost = False  # the node is out of reach
        self.closed = False  # nothing more comes from the node
        self._heard = heard
        self._detached = detached
        self._connection: Connection | None = None
        self._stream: Stream | None = None
        self._holding: Stream | None = None  # keeps the files on the host until the agent has started
        self._seen = 0
        self._closing = threading.Event()
        self._writing = threading.Lock()

    @property
    def may_answer(self) -> bool:
        """True if the agent may send more."""
        return self.opened and not self.closed and not self.lost

    def start(self) -> None:
        """Connect, send the files and start the agent. Raises HostError."""
        self._tell(LinkState("connecting"))
        self._connection = connect(self.bundle.node.host, self.bundle.node.access)
        self._tell(LinkState("sending files"))
        self._holding = ship(self.bundle, self._connection)
        self._tell(LinkState("preflight"))
        self._open(self.bundle.start_command)

    def follow(self, messages_seen: int) -> None:
        """Connect to a running agent and continue after the messages already seen. Raises HostError."""
        self._seen = messages_seen
        self._connection = connect(self.bundle.node.host, self.bundle.node.access)
        self._open(self.bundle.follow_command(messages_seen))

    def _open(self, command: str) -> None:
        assert self._connection is not None
        self._stream = self._connection.open(command)
        self.opened = True
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, command: Command) -> None:
        """Send the agent a command. A failure to send is ignored."""
        self._write(encode(command))

    def drop(self) -> None:
        """Drop a silent connection. The link then reconnects."""
        if self._stream is not None:
            self._stream.abandon()

    def end(self) -> str | None:
        """End an agent that does not answer, by recorded process ids. Return the processes left; None if none is."""
        with contextlib.suppress(HolmesError, OSError, EOFError):
            done = self._fresh_connection().run(self.bundle.end_command, b"", END_TIMEOUT_S)
            return "\n".join(last_lines(done.stdout, MAX_SKIPPED)) or None
        return "not reached"

    def remove_files(self) -> None:
        """Remove the node's folder if it still exists and the host can be reached."""
        with contextlib.suppress(HolmesError, OSError, EOFError):
            self._fresh_connection().run(self.bundle.remove_command, b"", REMOVE_TIMEOUT_S)

    def close(self) -> None:
        """Close all connections without notifying the agent."""
        self._closing.set()
        for stream in (self._stream, self._holding):
            if stream is not None:
                stream.abandon()
        if self._connection is not None:
            self._connection.close()

    def _fresh_connection(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self.bundle.node.host, self.bundle.node.access)
        return self._connection

    def _tell(self, message: Message | LinkWord, number: int | None = None) -> None:
        self._heard.put(NodeMessage(self.bundle.node.node_rank, message, time.monotonic(), number))

    def _listen(self) -> None:
        """Forward every message, and reconnect if the stream ends before the agent does."""
        last = self._hear()
        while isinstance(last, LinkClosed) and not last.agent_ended and self._seen and not self._closing.is_set():
            self._tell(LinkBroken(last.stderr))
            if not self._reconnect():
                self.lost = True
                break
            self._tell(LinkState("connected again"))
            self.send(FromMeeting(EVERY_CONNECTION, ""))  # answers may have been lost; ranks ask again
            last = self._hear()
        self.closed = True
        self._tell(last)

    def _hear(self) -> LinkClosed | Unreadable:
        """Read the stream to its end. Skip what login shells and containers print before the first message."""
        try:
            return self._hear_lines()
        except HostError as error:
            return Unreadable(error.evidence)

    def _hear_lines(self) -> LinkClosed | Unreadable:
        """Read messages for `_hear`. Raises HostError if the host sends a line that is too long."""
        assert self._stream is not None
        first = True
        skipped: deque[str] = deque(maxlen=MAX_SKIPPED)
        for line in self._stream.lines():
            if first and not line.startswith("{"):
                skipped.append(line[:MAX_SHOWN])
                continue
            if first and self._holding is not None:
                self._holding.abandon()
            first = False
            try:
                message = decode_message(line)
            except ValueError as error:
                return Unreadable(str(error)[:MAX_SHOWN])
            if isinstance(message, AgentEnded):
                self.ended = True
                return LinkClosed(0, "", agent_ended=True)
            self._seen += message.messages if isinstance(message, NotKept) else 1
            limit = min(MAX_HEARD, MAX_HEARD_CHARACTERS // len(line))
            while self._heard.qsize() > limit and not self._closing.is_set():
                time.sleep(PAUSE_S)
            self._tell(message, self._seen)
        exit_code, stderr = self._stream.wait()
        self.ended = exit_code == NO_FOLDER  # the agent removes it at its end
        output = "\n".join((*skipped, stderr)) if first else stderr  # either may say why a wrapper did not start
        return LinkClosed(exit_code, output, agent_ended=self.ended)

    def _reconnect(self) -> bool:
        """Return True once the agent is found again. Stop trying when an attached agent would have given up too."""
        deadline = time.monotonic() + SILENCE_LIMIT_S
        while self._detached or time.monotonic() < deadline:
            with contextlib.suppress(HolmesError, OSError, EOFError):
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
                with self._writing:
                    self._stream.send(data)
