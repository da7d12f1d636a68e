"""The agent's two ways to the controller, files in the node's folder that `relay.py` carries: a record a line."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from pathlib import Path

from holmes_runtime.config.messages import Command, Message, Refused, decode_command, encode

SPARE_BYTES = 256 * 1024  # some thousand messages; the ranks take their part of it


class CommandPipe:
    """The pipe of commands, read only when there is something."""

    def __init__(self, path: Path) -> None:
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # a writer of our own: the pipe never ends
        self._rest = b""
        self.last_heard_s = time.monotonic()

    def take(self, timeout_s: float) -> list[Command | Refused]:
        """Commands that arrive within `timeout_s`; `Refused` for one that cannot be read."""
        if not select.select([self._pipe], [], [], timeout_s)[0]:
            return []
        self.last_heard_s = time.monotonic()
        *whole, self._rest = (self._rest + os.read(self._pipe, 65536)).split(b"\n")
        return [_read_command(line) for line in whole if line.strip()]


def _read_command(line: bytes) -> Command | Refused:
    try:
        return decode_command(line.decode(errors="replace"))
    except ValueError as error:
        return Refused(f"a command of the controller cannot be read: {error}")


class MessageFile:
    """What the agent says. What a full disk does not take waits for the next one.

    A spare file keeps room for last words: it goes when the disk is full, so that the controller hears why.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._spare = path.with_name("spare")
        self._waiting = b""
        self.disk_was_full = False
        self.last_s = time.monotonic()
        with contextlib.suppress(OSError):
            self._spare.write_bytes(os.urandom(SPARE_BYTES))  # what a file system cannot compress

    def report(self, message: Message) -> None:
        """Append one message."""
        self.last_s = time.monotonic()
        self._waiting += encode(message)
        try:
            self._write()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and not self.disk_was_full:
                self.disk_was_full = True
                with contextlib.suppress(OSError):
                    self._spare.unlink()
                    self._write()

    def _write(self) -> None:
        while self._waiting:
            self._waiting = self._waiting[os.write(self._file, self._waiting) :]
