"""The common interface for running commands on a host, over SSH or in a local shell, and helpers for their output."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from holmes_core.errors import HostError
from holmes_core.records.regular_file import MIB

CHUNK_BYTES = 65536
MAX_ANSWER_BYTES = 64 * MIB
MAX_LINE_BYTES = 16 * MIB  # an agent's longest line carries 2 MiB from a rank; JSON may escape each byte as six
KEPT_STDERR_BYTES = MIB
MAX_SHOWN = 300  # characters kept of each line quoted in a message

ReadChunk = Callable[[], bytes]
"""Blocks until output is available and returns it; returns b"" at its end."""


@dataclass(frozen=True)
class Completed:
    """A finished command."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Stream(Protocol):
    """A running command. Closing its standard input signals to it that its caller has gone away."""

    def send(self, data: bytes) -> None:
        """Write to the command's standard input. Raises OSError if the command is gone."""

    def close_input(self) -> None:
        """Close the command's standard input; harmless when already closed."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of standard output. Raises HostError at an overlong line, and abandons the command."""

    def wait(self) -> tuple[int, str]:
        """Return exit code (negative: a signal; 255: unknown) and the tail of standard error, once `lines` is done."""

    def abandon(self) -> None:
        """Drop the connection to the command: close its input and, over SSH, its outputs too."""


class Connection(Protocol):
    """An open session on a host."""

    def run(self, command: str, stdin: bytes, timeout_s: float) -> Completed:
        """Run a shell command to its end. Raises HostError if it exceeds `timeout_s` or prints too much."""

    def open(self, command: str) -> Stream:
        """Start a shell command that stays connected to its caller."""

    def close(self) -> None:
        """Close the session."""


class BackgroundReader:
    """Drains one output of a command in a thread, so that the command never blocks on it; keeps the last MiB."""

    def __init__(self, read: ReadChunk) -> None:
        self._data = bytearray()
        self._thread = threading.Thread(target=self._run, args=(read,), daemon=True)
        self._thread.start()

    def _run(self, read: ReadChunk) -> None:
        while chunk := _read_or_end(read):
            self._data += chunk
            if len(self._data) > 2 * KEPT_STDERR_BYTES:  # trimming on every chunk would copy too much
                del self._data[:-KEPT_STDERR_BYTES]

    def text(self) -> str:
        """Wait up to 5 s for the output to end, then return the tail of what has arrived."""
        self._thread.join(timeout=5.0)
        return self._data[-KEPT_STDERR_BYTES:].decode(errors="replace")


def read_answer(host: str, read: ReadChunk) -> bytes:
    """Return all of an output. Raises HostError if it is longer than `MAX_ANSWER_BYTES`."""
    data = bytearray()
    while chunk := read():
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            raise _too_much(host, f"its answer is longer than {MAX_ANSWER_BYTES // MIB} MiB")
    return bytes(data)


def read_lines(host: str, read: ReadChunk) -> Iterator[str]:
    """Yield an output's lines until it ends or its connection is lost, including an unterminated last line.

    Raises:
        HostError: A line is longer than `MAX_LINE_BYTES`.
    """
    line = bytearray()
    while chunk := _read_or_end(read):
        *complete, partial = chunk.split(b"\n")
        for end in complete:
            line += end
            yield line.decode(errors="replace")
            line.clear()
        line += partial
        if len(line) > MAX_LINE_BYTES:
            raise _too_much(host, f"it sent more than {MAX_LINE_BYTES // MIB} MiB without a line break")
    if line:
        yield line.decode(errors="replace")


def last_lines(output: bytes | str, count: int) -> list[str]:
    """Return up to `count` last non-empty lines of an output, each truncated to `MAX_SHOWN` characters."""
    text = output if isinstance(output, str) else output.decode(errors="replace")
    return [line.strip()[:MAX_SHOWN] for line in text.splitlines() if line.strip()][-count:]


def _read_or_end(read: ReadChunk) -> bytes:
    try:
        return read()
    except (OSError, ValueError):  # connection lost, or closed by us
        return b""


def _too_much(host: str, what: str) -> HostError:
    hint = "check what prints so much there (a login script, a wrapper around Python, a tool), or leave the host out"
    return HostError(host, "too much", what, hint)


def timed_out(host: str, timeout_s: float) -> HostError:
    """Return the error for a command that took longer than allowed."""
    hint = "log in and check for high load or a file system that does not respond, then try again"
    return HostError(host, "timed out", f"no answer within {timeout_s:g} s", hint)
