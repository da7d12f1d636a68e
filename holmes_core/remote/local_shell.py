"""Commands that a process of this machine runs: in a shell here, for hosts with `transport: local`, or by `srun`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
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

END_S = 2.0  # for a command to end when it is asked to


class LocalConnection(Connection):
    """This machine, under the name of a host, or the host that the words `before` a command bring it to."""

    def __init__(self, host: str, before: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> None:
        self._host, self._before, self._environ = host, before, environ

    def run(self, command: str, stdin: bytes, timeout_s: float) -> Completed:
        process = self._spawn(command)
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except BaseException as error:  # Ctrl-C reaches it only through us
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise timed_out(self._host, timeout_s) from None
            raise
        return Completed(process.returncode, stdout, stderr)

    def open(self, command: str) -> Stream:
        return _LocalStream(self._spawn(command))

    def close(self) -> None:
        """Nothing is held open."""

    def _spawn(self, command: str) -> subprocess.Popen[bytes]:
        """The command in a session of its own, so that Ctrl-C here reaches it only through us."""
        pipe, words = subprocess.PIPE, [*self._before, "/bin/sh", "-c", command]
        return subprocess.Popen(words, env=self._environ, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it started; `srun` ends what runs elsewhere when it is asked to, and not when killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=END_S)
            return


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
