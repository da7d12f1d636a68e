"""The user's own command, started in the foreground as a shell would, with a file for NCCL's log."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from holmes_core.errors import HolmesError
from prober.nccl_logs.diagnose import SUBSYSTEMS
from prober.running.processes import MARK
from prober.running.watch_script import MarkedCommand

ANSWER_S = 20.0  # for hosts, once the command has ended
_OF_KEYS = {signal.SIGINT, signal.SIGQUIT}
POLL_S = 0.2
_FIRST_OF_SHELL = 128  # the exit code of a shell whose command a signal ended, less the signal


class StartedCommand:
    """A command that this process started. `mark` is in the environment of its processes, `logs` holds NCCL's logs."""

    def __init__(self, words: Sequence[str], logs: Path, to_stderr: bool) -> None:
        self.mark, self.logs = secrets.token_hex(8), logs
        self.was_interrupted = self.has_hung_up = self._is_hurried = False
        variables = {**os.environ, MARK: self.mark}
        if not any(name.startswith("NCCL_DEBUG") for name in os.environ):
            variables |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{logs}/%h.%p", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS}
        try:
            self._process = subprocess.Popen(words, env=variables, stdout=sys.stderr if to_stderr else None)
        except (OSError, ValueError) as error:
            what = f"{words[0]}: cannot be started: {getattr(error, 'strerror', None) or error}"
            raise HolmesError(what, "after -- name a program as in a shell: `-- torchrun ... train.py`") from None
        self._began_s, self._ended_s = time.monotonic(), 0.0

    @property
    def exit_code(self) -> int | None:
        """The code that a shell would show; None while it runs."""
        code = self._process.poll()
        if code is not None and not self._ended_s:
            self._ended_s = time.monotonic()
        return code if code is None or code >= 0 else _FIRST_OF_SHELL - code

    @property
    def seconds(self) -> float:
        """The seconds from its start to its end, or to now."""
        return (self._ended_s or time.monotonic()) - self._began_s

    def as_watched(self) -> MarkedCommand:
        """Return the mark and process id by which scripts on hosts find the command."""
        return MarkedCommand(self.mark, self._process.pid)

    def has_long_ended(self) -> bool:
        """Return True if the command ended long enough ago for hosts to answer, or a signal came after its end."""
        return self.exit_code is not None and (self._is_hurried or time.monotonic() - self._ended_s > ANSWER_S)

    def wait(self, limit_s: float | None = None) -> int:
        """Return the exit code once the command has ended; 0 if it still runs after `limit_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        return self.exit_code or 0

    def pass_on(self, signals: Collection[int], is_over: threading.Event) -> None:
        """Send the command each signal that arrives until `is_over`, unless the terminal has sent it to both."""
        while not is_over.is_set():
            came = signal.sigtimedwait(signals, POLL_S)
            if came is None:
                continue
            self.was_interrupted, self._is_hurried = True, self.exit_code is not None
            if came.si_signo == signal.SIGHUP:
                self._hang_up()
            by_key = came.si_code > 0 and came.si_signo in _OF_KEYS  # else by kill(2), which names one process
            if not (by_key and self._is_in_group()):
                self.send(came.si_signo)

    def send(self, number: int) -> None:
        """Send the command a signal; print an error if that is not allowed."""
        try:
            self._process.send_signal(number)
        except PermissionError:
            os.write(2, f"the command runs as another user: signal {number} could not be passed on\n".encode())

    def _is_in_group(self) -> bool:
        """Return True if the command is in this process's group, which the terminal's keys send signals to."""
        try:
            return os.getpgid(self._process.pid) == os.getpgrp()
        except OSError:  # the command has ended
            return True

    def _hang_up(self) -> None:
        """Stop writing to the terminal that has gone."""
        self.has_hung_up = True
        with open(os.devnull, "wb") as nowhere:
            for stream in (1, 2):
                if stat.S_ISCHR(os.fstat(stream).st_mode):
                    os.dup2(nowhere.fileno(), stream)


@contextlib.contextmanager
def started_command(words: Sequence[str], to_stderr: bool) -> Iterator[StartedCommand]:
    """Start the command, pass signals on to it, and wait for its end after the block.

    Raises:
        HolmesError: The command cannot be started.
    """
    numbers = [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup has it ignored
        numbers.append(signal.SIGHUP)
    early: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: early.append(number)) for number in numbers}
    try:
        with tempfile.TemporaryDirectory(prefix="holmes-doctor-", ignore_cleanup_errors=True) as folder:
            command = StartedCommand(words, Path(folder), to_stderr)
            is_over = threading.Event()
            signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
            for arrived in early:
                command.send(arrived)
            passing = threading.Thread(target=command.pass_on, args=(numbers, is_over))
            passing.start()
            try:
                yield command
            finally:
                command.wait()
                is_over.set()
                passing.join()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
