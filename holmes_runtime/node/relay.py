"""Relay messages from a node's folder to the controller over standard output, and its commands back over input.

The first relay starts the agent, and stays until the agent ends even if the controller is gone. A later relay is
`python -m holmes_runtime.node.relay N` in the folder, and skips the first N messages. The agent never waits for relays.
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
MAX_CHECK_S = 1.0  # the most that one check adds to the time for which the agent was stopped
PATIENCE_S = 5.0  # for a reader that takes nothing
_MAX_UNSENT_BYTES = 1 << 20


def relay(folder: Path, messages_seen: int, has_ended: Callable[[], bool], stops_at_eof: bool = False) -> None:
    """Relay all messages except those already seen, until the agent has ended and everything is delivered.

    With `stops_at_eof`, also stop when the input ends.
    """
    unsent, has_reader, has_writer, ended = b"", True, True, False  # a reader of our output, a writer of our input
    messages = MessageReader(folder, messages_seen)
    deadline: float | None = None
    waking = os.open(folder / WAKING_PIPE, os.O_RDWR | os.O_NONBLOCK)  # with a writer of our own, the pipe never ends
    while True:
        if deadline is None and len(unsent) < _MAX_UNSENT_BYTES:
            ended = ended or has_ended()
            fresh = messages.read(_MAX_UNSENT_BYTES)
            unsent += fresh
            if ended and not fresh:
                unsent += encode(AgentEnded())
                deadline = time.monotonic() + PATIENCE_S
        if deadline is not None and (not unsent or time.monotonic() > deadline):
            return
        if not has_writer and stops_at_eof:
            return
        outputs = [1] if unsent and has_reader else []
        readable, writable, _ = select.select([waking, 0] if has_writer else [], outputs, [], POLL_S)
        if waking in readable:
            with contextlib.suppress(BlockingIOError):  # another relay read it first
                os.read(waking, _MAX_UNSENT_BYTES)
        if 0 in readable:
            has_writer = _pass_on(folder)
        if writable:
            unsent, has_reader = _write(unsent)
            deadline = deadline and time.monotonic() + PATIENCE_S
        if not has_reader:
            unsent = b""


class AgentAsChild:
    """The agent as seen by its first relay, whose child process it is."""

    def __init__(self, pid: int, folder: Path, max_stopped_s: float) -> None:
        self._pid, self._folder, self._max_stopped_s = pid, folder, max_stopped_s
        self._stopped_s, self._checked_s = 0.0, time.monotonic()

    def has_ended(self) -> bool:
        """Return True if the agent has ended; its tunnel is then removed. Collect the exit statuses of all orphans.

        Kill an agent that a signal has stopped for too long, because its ranks must not outlive the run.
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
        """Kill an agent stopped for too long. A check counts at most MAX_CHECK_S, in case this process stopped too."""
        now_s = time.monotonic()
        since_s, self._checked_s = min(now_s - self._checked_s, MAX_CHECK_S), now_s
        process = read_process(self._pid)
        self._stopped_s = self._stopped_s + since_s if process is not None and process.state == "T" else 0.0
        if self._stopped_s > self._max_stopped_s:
            os.kill(self._pid, signal.SIGKILL)


def wake_relay(folder: Path) -> None:
    """Make the relay look for messages now. Do nothing if no relay runs."""
    with contextlib.suppress(OSError):
        pipe = os.open(folder / WAKING_PIPE, os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, b"\n")
        os.close(pipe)


def _pass_on(folder: Path) -> bool:
    """Pass the controller's data on to the agent. Return False if the input has ended."""
    data = os.read(0, 65536)
    if data:
        with contextlib.suppress(OSError):  # the agent has ended
            pipe = os.open(folder / COMMANDS_PIPE, os.O_WRONLY | os.O_NONBLOCK)
            _write_all(pipe, data)
            os.close(pipe)
    return bool(data)


def _write_all(pipe: int, data: bytes) -> None:
    """Write as fast as the agent reads. Drop the rest once the agent has read nothing for PATIENCE_S."""
    while data and select.select([], [pipe], [], PATIENCE_S)[1]:
        with contextlib.suppress(BlockingIOError):
            data = data[os.write(pipe, data) :]


def _write(data: bytes) -> tuple[bytes, bool]:
    """Write to standard output as much as a pipe takes at once. Return the rest, and True if the pipe has a reader."""
    try:
        return data[os.write(1, data[: select.PIPE_BUF]) :], True
    except OSError:
        return b"", False


def _has_ended(folder: Path) -> bool:
    """Return True if the agent has ended; its tunnel, which a killed first relay may have left, is then removed.

    The agent holds its lock while it lives.
    """
    try:
        with open(folder / AGENT_LOCK_FILE, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:  # the folder was removed when the agent ended
        pass
    take_down(folder)
    return True


def main() -> int:
    """Relay from the current folder. Return the exit code: NO_FOLDER if it is no longer a node's folder."""
    folder = Path.cwd()
    if not (folder / AGENT_LOCK_FILE).exists():
        return NO_FOLDER
    relay(folder, int(sys.argv[1]), lambda: _has_ended(folder), stops_at_eof=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
