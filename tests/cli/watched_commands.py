"""Many commands in one child process of bounded memory, and of each: how it ended, how long it took, what it touched.

`python -m tests.cli.watched_commands` reads cases from standard input, a JSON object a line, and answers each with one.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

MAX_BYTES = 2 << 30  # of address space
MAX_CPU_S, MAX_S = 10, 120  # of one command: waiting for a pipe takes no CPU, and a busy machine takes long
GRACE_S = 2 * MAX_S  # after which a child that does not answer is ended
MAY_START = ("cbc", "highs")  # the solver of `holmes plan`
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod")
_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pty.spawn")


@dataclass(frozen=True)
class Seen:
    """One command: `took_s` of CPU, and in `touched` what it started, and what it changed outside its own folders."""

    arguments: tuple[str, ...]
    code: int
    took_s: float
    output: str
    touched: tuple[str, ...]

    @property
    def fault(self) -> str | None:
        """Return why that is no good end, None if it is one."""
        if "Traceback" in self.output:
            return "traceback: " + self.output[-1500:]
        if self.code not in (0, 1, 2):
            return f"exit code {self.code}: {self.output[-500:]}"
        if self.took_s > MAX_CPU_S:
            return f"took {self.took_s:.0f} s of CPU"
        if self.touched:
            return f"touched {self.touched[:3]}"
        if set("\x1b\x07\x9b") & set(self.output):
            return "control characters came out"
        return None


class WatchedCommands:
    """The child process, started anew where it died."""

    def __init__(self) -> None:
        self._child: Popen[bytes] | None = None

    def run(self, folder: Path, arguments: Sequence[str], foreign: str) -> Seen:
        """Run `holmes` with `arguments` in `folder`, where it may write; but not in the folder `foreign` in it."""
        if self._child is None or self._child.poll() is not None:
            self._child = Popen([sys.executable, "-m", __name__], stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        case = {"folder": str(folder), "arguments": list(arguments), "foreign": foreign}
        child.stdin.write(json.dumps(case).encode() + b"\n")
        child.stdin.flush()
        signal.alarm(GRACE_S)
        with contextlib.suppress(TimeoutError):
            line = child.stdout.readline()
            signal.alarm(0)
            if line:
                return Seen(**{**json.loads(line), "arguments": tuple(arguments)})
        child.kill()
        return Seen(tuple(arguments), -9, GRACE_S, "the child died, or did not answer", ())

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()


@contextlib.contextmanager
def watched_commands() -> Iterator[WatchedCommands]:
    """Yield the child; a command that does not answer in time raises TimeoutError inside `run`."""

    def late(*_: object) -> None:
        raise TimeoutError

    before, commands = signal.signal(signal.SIGALRM, late), WatchedCommands()
    try:
        yield commands
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        commands.close()


def _late(*_: object) -> None:
    raise TimeoutError(f"no end after {MAX_CPU_S} s of CPU, or {MAX_S} s")


def _run(main: Callable[[], object], case: dict[str, Any], touched: list[str]) -> dict[str, object]:
    os.chdir(case["folder"])
    sys.argv = ["holmes", *case["arguments"]]
    written = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True)
    sys.stdout = sys.stderr = written
    began_s, code = time.process_time(), -1
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, _late)
    signal.alarm(MAX_S)
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S + 2)
    try:
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    except BaseException:
        traceback.print_exc(file=written)
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        took_s = time.process_time() - began_s
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    buffer = written.buffer
    assert isinstance(buffer, io.BytesIO)
    output = buffer.getvalue().decode("utf-8", "replace")
    kept = output if len(output) < 20_000 else output[:10_000] + output[-10_000:]
    return {"code": code, "took_s": took_s, "output": kept, "touched": touched}


def _watch(case: dict[str, Any], touched: list[str]) -> Callable[[str, tuple[Any, ...]], None]:
    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS:
            words = str(arguments[:2])
            if not any(name in words for name in MAY_START):
                touched.append(f"{event} {words}")
        elif event == "open" and isinstance(arguments[0], str | bytes) and isinstance(arguments[2], int):
            if arguments[2] & _WRITING:
                _check(event, arguments[0], case, touched)
        elif event in _CHANGES and isinstance(arguments[0], str | bytes):
            _check(event, arguments[0], case, touched)

    return look


def _check(event: str, name: str | bytes, case: dict[str, Any], touched: list[str]) -> None:
    given = Path(os.fsdecode(name))
    # A link is removed, renamed or made itself.
    path = os.path.realpath(given) if event == "open" else str(Path(os.path.realpath(given.parent), given.name))
    folder = f"{case['folder']}/"
    is_own = f"{path}/".startswith(folder) and not f"{path}/".startswith(f"{folder}{case['foreign']}/")
    if path != os.devnull and not is_own:
        touched.append(f"{event} {path}")


def _main() -> None:
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    sys.dont_write_bytecode = True  # it is no command that writes it
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    from holmes_cli.app import main

    case: dict[str, Any] = {"folder": str(Path.cwd()), "foreign": ""}
    touched: list[str] = []
    sys.addaudithook(_watch(case, touched))
    for line in sys.stdin.buffer:
        case.clear()
        case.update(json.loads(line))
        touched.clear()
        os.environ.update(XDG_STATE_HOME=f"{case['folder']}/state", TMPDIR=case["folder"])
        answers.write(json.dumps(_run(main, case, touched)) + "\n")
        answers.flush()


if __name__ == "__main__":
    _main()
