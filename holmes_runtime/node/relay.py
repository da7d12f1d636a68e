"""The relay of a node: messages from its folder to the controller and commands back, by standard output and input.

The first relay starts the agent. `python -m holmes_runtime.node.relay N` in the folder is a later relay, which skips
the first N messages. A relay whose controller is gone waits for the agent's end. The agent does not wait for relays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holmes_runtime.config.messages import NO_FOLDER, AgentEnded, encode
from holmes_runtime.config.node_config import AGENT_LOCK_FILE
from holmes_runtime.node.admission.tunnel import take_down
from holmes_runtime.node.mailbox import MessageReader
from holmes_runtime.node.process_tree import read_process

COMMANDS_PIPE = "commands"
WAKING_PIPE = "waking"  # through which the agent wakes its relay for an urgent message
AGENT_FILE = "agent.json"
POLL_S = 0.1
MAX_LOOK_S = 1.0
PATIENCE_S = 5.0
_MAX_WAITING_BYTES = 1 << 20


def relay(folder: Path, messages_seen: int, has_ended: Callable[[], bool], leave_alone: bool = False) -> None:
    """Relay all messages except those already seen, until the agent has ended and everything is delivered.

    If `leave_alone`, stop when the input ends.
    """
    waiting, listening, heard, ended = b"", True, True, False
    messages = MessageReader(folder, messages_seen)
    deadline: float | None = None
    waking = os.open(folder / WAKING_PIPE, os.O_RDWR | os.O_NONBLOCK)  # with a writer of our own, the pipe never ends
    while True:
        if deadline is None and len(waiting) < _MAX_WAITING_BYTES:
            ended = ended or has_ended()
            fresh = messages.read(_MAX_WAITING_BYTES)
            waiting += fresh
            if ended and not fresh:
                waiting += encode(AgentEnded())
                deadline = time.monotonic() + PATIENCE_S
        if deadline is not None and (not waiting or time.monotonic() > deadline):
            return
        if not heard and leave_alone:
            return
        takers = [1] if waiting and listening else []
        readable, writable, _ = select.select([waking, 0] if heard else [], takers, [], POLL_S)
        if waking in readable:
            with contextlib.suppress(BlockingIOError):  # another relay read it first
                os.read(waking, _MAX_WAITING_BYTES)
        if 0 in readable:
            heard = _pass_on(folder)
        if writable:
            waiting, listening = _write(waiting)
            deadline = deadline and time.monotonic() + PATIENCE_S
        if not listening:
            waiting = b""


class AgentAsChild:
    """The agent as seen by its first relay, whose child it is."""

    def __init__(self, pid: int, folder: Path, most_stopped_s: float) -> None:
        self._pid, self._folder, self._most_stopped_s = pid, folder, most_stopped_s
        self._stopped_s, self._looked_s = 0.0, time.monotonic()

    def has_ended(self) -> bool:
        """Return True if the agent has ended, and remove its tunnel then. Collects the exit statuses of all orphans.

        An agent stopped by a signal is ended after a long silence: its ranks must not outlive the run.
        """
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                if ended == self._pid:
                    take_down(self._folder)
                    return True
            self._end_if_stopped()
            return False
        return True

    def _end_if_stopped(self) -> None:
        """Count a check as at most one second, as this process may have been stopped along with the agent."""
        now_s = time.monotonic()
        since_s, self._looked_s = min(now_s - self._looked_s, MAX_LOOK_S), now_s
        process = read_process(self._pid)
        self._stopped_s = self._stopped_s + since_s if process is not None and process.state == "T" else 0.0
        if self._stopped_s > self._most_stopped_s:
            os.kill(self._pid, signal.SIGKILL)


def wake_relay(folder: Path) -> None:
    """Make the relay look for messages now. If no relay runs, do nothing."""
    with contextlib.suppress(OSError):
        pipe = os.open(folder / WAKING_PIPE, os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, b"\n")
        os.close(pipe)


def _pass_on(folder: Path) -> bool:
    """Pass the controller's data on to the agent. Return False at the end of the input."""
    data = os.read(0, 65536)
    if data:
        with contextlib.suppress(OSError):  # the agent has ended
            pipe = os.open(folder / COMMANDS_PIPE, os.O_WRONLY | os.O_NONBLOCK)
            _write_all(pipe, data)
            os.close(pipe)
    return bool(data)


def _write_all(pipe: int, data: bytes) -> None:
    """Write as fast as the agent reads. Drop the rest once it has read nothing for PATIENCE_S."""
    while data and select.select([], [pipe], [], PATIENCE_S)[1]:
        with contextlib.suppress(BlockingIOError):
            data = data[os.write(pipe, data) :]


def _write(data: bytes) -> tuple[bytes, bool]:
    """Write as much as a pipe takes without blocking. Return the rest, and True if the pipe has a reader."""
    try:
        return data[os.write(1, data[: select.PIPE_BUF]) :], True
    except OSError:
        return b"", False


def _has_ended(folder: Path) -> bool:
    """Return True if the agent has ended, and remove its tunnel, which a killed first relay may have left.

    The agent holds its lock while it lives.
    """
    try:
        with open(folder / AGENT_LOCK_FILE, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:  # the folder is removed at the agent's end
        pass
    take_down(folder)
    return True


def main() -> int:
    """Relay in the current folder. Return NO_FOLDER as the exit code if it is no longer a node's folder."""
    folder = Path.cwd()
    if not (folder / AGENT_LOCK_FILE).exists():
        return NO_FOLDER
    relay(folder, int(sys.argv[1]), lambda: _has_ended(folder), leave_alone=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
