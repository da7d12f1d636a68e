"""Running commands on a host, by SSH or in a local shell: the interface both have, and the reading of output."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from holmes_core.errors import HostError

CHUNK_BYTES = 65536

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
        """Lines of standard output until it ends."""

    def wait(self) -> tuple[int, str]:
        """Exit code (negative: signal, None known: 255) and the standard error, after the output ended."""

    def abandon(self) -> None:
        """Drop the connection to the command; its input closes."""


class Connection(Protocol):
    """A host that is logged in to."""

    def run(self, command: str, stdin: bytes, timeout_s: float) -> Completed:
        """Run a shell command to its end. Raises HostError when it takes longer than `timeout_s`."""

    def open(self, command: str) -> Stream:
        """Start a shell command and keep talking to it."""

    def close(self) -> None:
        """End the connection."""


class BackgroundReader:
    """Reads one output of a command in a thread, so that the command never waits for it."""

    def __init__(self, read: Read) -> None:
        self._data = bytearray()
        self._thread = threading.Thread(target=self._run, args=(read,), daemon=True)
        self._thread.start()

    def _run(self, read: Read) -> None:
        with contextlib.suppress(OSError):
            while chunk := read():
                self._data += chunk

    def text(self) -> str:
        """All of the output, once it ended; what came so far where it does not end within 5 s."""
        self._thread.join(timeout=5.0)
        return self._data.decode(errors="replace")


def read_lines(read: Read) -> Iterator[str]:
    """Lines of an output until it ends or breaks off; a last line without a newline counts."""
    rest = b""
    while chunk := _read_or_end(read):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _read_or_end(read: Read) -> bytes:
    try:
        return read()
    except OSError:
        return b""


def timed_out(host: str, timeout_s: float) -> HostError:
    """The error for a command that took longer than it may."""
    hint = "see what hangs there: log in and look at its load and at file systems that do not answer; then try again"
    return HostError(host, "timed out", f"no answer within {timeout_s:g} s", hint)
