"""The agent's two channels to the controller: files in the node's folder, one record per line, carried by `relay.py`.

Messages are stored in parts, each named by the number of messages before it. The newest two parts are kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from holmes_runtime.config.messages import Command, Message, NotKept, Refused, decode_command, encode

PART_BYTES = 32 * 1024 * 1024
PART_NAME = "messages-{before:012}.jsonl"
SPARE_BYTES = 256 * 1024  # a few thousand messages; ranks may use part of it


class CommandPipe:
    """The pipe of commands, which is read only when it has data."""

    def __init__(self, path: Path) -> None:
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # with a writer of our own, the pipe never ends
        self._rest = b""
        self.last_heard_s = time.monotonic()

    def take(self, timeout_s: float) -> list[Command | Refused]:
        """Return commands that arrive within `timeout_s`, with `Refused` for one that cannot be read."""
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
    """The agent's messages. Messages that do not fit on a full disk wait for the next one.

    A spare file keeps room for last messages: it is removed when the disk is full, so the controller hears why.
    """

    def __init__(self, folder: Path, part_bytes: int = PART_BYTES) -> None:
        self._folder, self._part_bytes = folder, part_bytes
        self._parts = [PART_NAME.format(before=0)]
        self._file = self._open()
        self._count = self._part_written_bytes = 0
        self._spare = folder / "spare"
        self._waiting = b""
        self._lock = Lock()
        self.disk_was_full = False
        self.last_s = time.monotonic()
        with contextlib.suppress(OSError):
            self._spare.write_bytes(os.urandom(SPARE_BYTES))  # random, as a file system cannot compress it

    def report(self, message: Message) -> None:
        """Append one message. Any thread may call this."""
        with self._lock:
            self.last_s = time.monotonic()
            if self._part_written_bytes >= self._part_bytes and not self._waiting:
                self._begin_part()
            self._waiting += encode(message)
            self._count += 1
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
            written = os.write(self._file, self._waiting)
            self._waiting = self._waiting[written:]
            self._part_written_bytes += written

    def _begin_part(self) -> None:
        """Begin a new part and drop all but the newest two. If the disk has no room for a file, change nothing."""
        self._parts.append(PART_NAME.format(before=self._count))
        try:
            file = self._open()
        except OSError:
            self._parts.pop()
            return
        os.close(self._file)
        self._file, self._part_written_bytes = file, 0
        while len(self._parts) > 2:
            (self._folder / self._parts.pop(0)).unlink(missing_ok=True)

    def _open(self) -> int:
        return os.open(self._folder / self._parts[-1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class MessageReader:
    """The agent's messages after the first `seen`, through all parts, while the agent writes more."""

    def __init__(self, folder: Path, seen: int) -> None:
        self._folder, self._seen = folder, seen
        self._file: BinaryIO | None = None
        self._before = -1

    def read(self, most_bytes: int) -> bytes:
        """Return the next bytes, none if there are none yet. `NotKept` stands for deleted messages."""
        befores = self._befores()  # first, as a part that already has a successor is at its end when it is read
        data = (self._file.read(most_bytes) or b"") if self._file else b""
        if data or not befores:
            self._seen += data.count(b"\n")
            return data
        before = max((each for each in befores if each <= self._seen), default=min(befores))
        if before == self._before or not self._open(before):
            return b""
        if before > self._seen:
            gone, self._seen = before - self._seen, before
            return encode(NotKept(gone))
        return self.read(most_bytes)

    def _befores(self) -> list[int]:
        """Return the number of messages before each kept part."""
        prefix, suffix = PART_NAME.split("{before:012}")
        paths = self._folder.glob(f"{prefix}*{suffix}")
        return [int(path.name.removeprefix(prefix).removesuffix(suffix)) for path in paths]

    def _open(self, before: int) -> bool:
        """Continue in that part, after the messages already seen. Return False if it has just been dropped."""
        try:
            file = open(self._folder / PART_NAME.format(before=before), "rb")  # noqa: SIM115
        except FileNotFoundError:
            return False
        if self._file:
            self._file.close()
        self._file, self._before = file, before
        for _ in range(self._seen - before):
            file.readline()
        return True
