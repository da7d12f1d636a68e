"""Commands on a host, by SSH or in a local shell: their common interface, and the reading of output."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from holmes_core.errors import HostError
from holmes_core.records.regular_file import MIB

CHUNK_BYTES = 65536
MAX_ANSWER_BYTES = 64 * MIB
MAX_LINE_BYTES = 16 * MIB  # an agent's longest line has a rank's 2 MiB, with six bytes of escape for each
KEPT_STDERR_BYTES = MIB
MAX_SHOWN = 300  # characters of a line in a message

Read = Callable[[], bytes]
"""A function that returns the next bytes of an output as soon as there are any; none at its end."""


@dataclass(frozen=True)
class Completed:
    """A finished command."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Stream(Protocol):
    """A running command. Closing its input signals that the controller has stopped listening."""

    def send(self, data: bytes) -> None:
        """Write to the command's standard input; it is an OSError if the command is gone."""

    def close_input(self) -> None:
        """Close the command's standard input; harmless when already closed."""

    def lines(self) -> Iterator[str]:
        """Yield lines of standard output to its end. A line that is too long ends the command with a HostError."""

    def wait(self) -> tuple[int, str]:
        """Return exit code (negative: signal, unknown: 255) and the last of standard error, after the output ended."""

    def abandon(self) -> None:
        """Drop the connection to the command; its input closes."""


class Connection(Protocol):
    """A host with an open login."""

    def run(self, command: str, stdin: bytes, timeout_s: float) -> Completed:
        """Run a shell command to its end. It is a HostError if it exceeds `timeout_s` or prints too much."""

    def open(self, command: str) -> Stream:
        """Start a shell command that stays connected to its caller."""

    def close(self) -> None:
        """End the connection."""


class BackgroundReader:
    """A thread that reads one output of a command, so that the command never blocks on it. Keeps the last MiB."""

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
        """Return the end of the output once it ended, or of the part so far where it does not end within 5 s."""
        self._thread.join(timeout=5.0)
        return self._data[-KEPT_STDERR_BYTES:].decode(errors="replace")


def read_answer(host: str, read: Read) -> bytes:
    """Read all of an output. It is a HostError if that is longer than an answer may be."""
    data = bytearray()
    while chunk := read():
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            raise _too_much(host, f"its answer is longer than {MAX_ANSWER_BYTES // MIB} MiB")
    return bytes(data)


def read_lines(host: str, read: Read) -> Iterator[str]:
    """Yield lines of an output until it ends or breaks off; a last line without a newline counts.

    Raises:
        HostError: A line is longer than allowed. It names the host.
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
    """Return the last non-empty lines of an output, each cut, for a message."""
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
    """Return the error for a command that took longer than allowed."""
    hint = "see what hangs there: log in and look at its load and at file systems that do not answer; then try again"
    return HostError(host, "timed out", f"no answer within {timeout_s:g} s", hint)
