"""Commands run by a process of this machine: in a shell here, for hosts with `transport: local`, or by `srun`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import IO

from holmes_core.errors import HostError
from holmes_core.remote.transport import (
    CHUNK_BYTES,
    BackgroundReader,
    Completed,
    Connection,
    Stream,
    read_answer,
    read_lines,
    timed_out,
)

END_S = 2.0  # for a command to end after a signal


class LocalConnection(Connection):
    """This machine under the name of a host, or the host that the words `before` a command (`srun ...`) lead to."""

    def __init__(self, host: str, before: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> None:
        self._host, self._before, self._environ = host, before, environ

    def run(self, command: str, stdin: bytes, timeout_s: float) -> Completed:
        process = self._spawn(command)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        deadline = time.monotonic() + timeout_s
        threading.Thread(target=_feed, args=(process.stdin, stdin), daemon=True).start()
        stderr = BackgroundReader(partial(process.stderr.read1, CHUNK_BYTES))  # type: ignore[attr-defined]
        try:
            stdout = read_answer(self._host, partial(_read_until, process.stdout, deadline))
            process.wait(max(0.0, deadline - time.monotonic()))
        except BaseException as error:  # Ctrl-C reaches the command only through this process
            _end(process)
            if isinstance(error, TimeoutError | subprocess.TimeoutExpired):
                raise timed_out(self._host, timeout_s) from None
            raise
        finally:
            process.stdout.close()
        return Completed(process.returncode, stdout, stderr.text().encode())

    def open(self, command: str) -> Stream:
        return _LocalStream(self._host, self._spawn(command))

    def close(self) -> None:
        """Do nothing: no resource is held open."""

    def _spawn(self, command: str) -> subprocess.Popen[bytes]:
        """Start the command in its own session, so that Ctrl-C here reaches it only through this process."""
        pipe, words = subprocess.PIPE, [*self._before, "/bin/sh", "-c", command]
        return subprocess.Popen(words, env=self._environ, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)


def _feed(pipe: IO[bytes], data: bytes) -> None:
    """Write all of a command's input and close it; the command need not read it."""
    with contextlib.suppress(OSError):
        pipe.write(data)
    with contextlib.suppress(OSError):
        pipe.close()


def _read_until(pipe: IO[bytes], deadline: float) -> bytes:
    """Return the next bytes of a pipe, none at its end. If none arrive before the deadline, it is a TimeoutError."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError
    return os.read(pipe.fileno(), CHUNK_BYTES)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and its children; `srun` ends its remote processes on SIGTERM, not on SIGKILL."""
    assert process.stdout is not None
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + END_S
        with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
            while _read_until(process.stdout, deadline):  # end of file: all processes that had it open are gone
                if time.monotonic() > deadline:
                    raise TimeoutError
            process.wait(END_S)
            return


class _LocalStream(Stream):
    def __init__(self, host: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._host, self._process = host, process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._stderr = BackgroundReader(partial(process.stderr.read1, CHUNK_BYTES))  # type: ignore[attr-defined]

    def send(self, data: bytes) -> None:
        self._stdin.write(data)
        self._stdin.flush()

    def close_input(self) -> None:
        with contextlib.suppress(OSError):
            self._stdin.close()

    def lines(self) -> Iterator[str]:
        try:
            yield from read_lines(self._host, partial(self._stdout.read1, CHUNK_BYTES))  # type: ignore[attr-defined]
        except HostError:
            self.abandon()
            self._stdout.close()  # SIGPIPE ends a process that continues writing
            raise

    def wait(self) -> tuple[int, str]:
        return self._process.wait(), self._stderr.text()

    def abandon(self) -> None:
        self.close_input()
