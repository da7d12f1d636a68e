"""Running commands on a host, by SSH or in a local shell: the interface both have, and the reading of output."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from holmes_core.errors import HostError
from holmes_core.records.regular_file import MIB

CHUNK_BYTES = 65536
MAX_ANSWER_BYTES = 64 * MIB
MAX_LINE_BYTES = 16 * MIB  # the longest of an agent's is a rank's line of 2 MiB with an escape of six for each byte
KEPT_STDERR_BYTES = MIB
MAX_SHOWN = 300  # characters of a line that a message shows

Read = Callable[[], bytes]
"""The next bytes of an output, as soon as there are any; none at its end."""


@dataclass(frozen=True)
class Completed:
    """A finished command."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Stream(Protocol):
    """A running command. Closing its input is the sign that nobody listens any more."""

    def send(self, data: bytes) -> None:
        """Write to the command's standard input. Raises OSError if it is gone."""

    def close_input(self) -> None:
        """Close the command's standard input; harmless when already closed."""

    def lines(self) -> Iterator[str]:
        """Lines of standard output until it ends. Raises HostError where one is too long, and ends the command."""

    def wait(self) -> tuple[int, str]:
        """Exit code (negative: signal, None known: 255) and the last of the standard error, after the output ended."""

    def abandon(self) -> None:
        """Drop the connection to the command; its input closes."""


class Connection(Protocol):
    """A host that is logged in to."""

    def run(self, command: str, stdin: bytes, timeout_s: float) -> Completed:
        """Run a shell command to its end. Raises HostError when it takes longer than `timeout_s` or says too much."""

    def open(self, command: str) -> Stream:
        """Start a shell command and keep talking to it."""

    def close(self) -> None:
        """End the connection."""


class BackgroundReader:
    """Reads one output of a command in a thread, so that the command never waits for it. Keeps the last MiB."""

    def __init__(self, read: Read) -> None:
        self._data = bytearray()
        self._thread = threading.Thread(target=self._run, args=(read,), daemon=True)
        self._thread.start()

    def _run(self, read: Read) -> None:
        while chunk := _read_or_end(read):
            self._data += chunk
            if len(self._data) > 2 * KEPT_STDERR_BYTES:  # not at every chunk, which would take quadratic time
                del self._data[:-KEPT_STDERR_BYTES]

    def text(self) -> str:
        """The end of the output, once it ended; of what came so far where it does not end within 5 s."""
        self._thread.join(timeout=5.0)
        return self._data[-KEPT_STDERR_BYTES:].decode(errors="replace")


def read_answer(host: str, read: Read) -> bytes:
    """All of an output. Raises HostError naming the host where it is longer than an answer may be."""
    data = bytearray()
    while chunk := read():
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            raise _too_much(host, f"its answer is longer than {MAX_ANSWER_BYTES // MIB} MiB")
    return bytes(data)


def read_lines(host: str, read: Read) -> Iterator[str]:
    """Lines of an output until it ends or breaks off; a last line without a newline counts.

    Raises HostError naming the host where a line is longer than any may be.
    """
    rest = bytearray()
    while chunk := _read_or_end(read):
        *whole, begun = chunk.split(b"\n")
        for line in whole:
            rest += line
            yield rest.decode(errors="replace")
            rest.clear()
        rest += begun
        if len(rest) > MAX_LINE_BYTES:
            raise _too_much(host, f"it sends a line of more than {MAX_LINE_BYTES // MIB} MiB without an end")
    if rest:
        yield rest.decode(errors="replace")


def last_lines(said: bytes | str, most: int) -> list[str]:
    """The last lines of an output that hold something, each cut, for a message."""
    text = said if isinstance(said, str) else said.decode(errors="replace")
    return [line.strip()[:MAX_SHOWN] for line in text.splitlines() if line.strip()][-most:]


def _read_or_end(read: Read) -> bytes:
    try:
        return read()
    except (OSError, ValueError):  # it broke off, or was closed on this side
        return b""


def _too_much(host: str, what: str) -> HostError:
    hint = "see what prints there: a login script, a wrapper around Python, or a tool; or leave the host out"
    return HostError(host, "too much", what, hint)


def timed_out(host: str, timeout_s: float) -> HostError:
    """The error for a command that took longer than it may."""
    hint = "see what hangs there: log in and look at its load and at file systems that do not answer; then try again"
    return HostError(host, "timed out", f"no answer within {timeout_s:g} s", hint)
