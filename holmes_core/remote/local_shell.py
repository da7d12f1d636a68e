"""Commands in a shell of this machine, for hosts with `transport: local`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial

from holmes_core.remote.transport import (
    CHUNK_BYTES,
    BackgroundReader,
    Completed,
    Connection,
    Stream,
    read_lines,
    timed_out,
)


class LocalConnection(Connection):
    """This machine, under the name of a host."""

    def __init__(self, host: str) -> None:
        self._host = host

    def run(self, command: str, stdin: bytes, timeout_s: float) -> Completed:
        process = _spawn(command)
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise timed_out(self._host, timeout_s) from None
        return Completed(process.returncode, stdout, stderr)

    def open(self, command: str) -> Stream:
        return _LocalStream(_spawn(command))

    def close(self) -> None:
        """Nothing is held open."""


def _spawn(command: str) -> subprocess.Popen[bytes]:
    """The command in a session of its own, so that Ctrl-C here reaches it only through us."""
    pipe = subprocess.PIPE
    return subprocess.Popen(["/bin/sh", "-c", command], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)


class _LocalStream(Stream):
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin = process.stdin
        self._read = partial(os.read, process.stdout.fileno(), CHUNK_BYTES)
        self._stderr = BackgroundReader(partial(os.read, process.stderr.fileno(), CHUNK_BYTES))

    def send(self, data: bytes) -> None:
        self._stdin.write(data)
        self._stdin.flush()

    def close_input(self) -> None:
        with contextlib.suppress(OSError):
            self._stdin.close()

    def lines(self) -> Iterator[str]:
        return read_lines(self._read)

    def wait(self) -> tuple[int, str]:
        return self._process.wait(), self._stderr.text()

    def abandon(self) -> None:
        self.close_input()
