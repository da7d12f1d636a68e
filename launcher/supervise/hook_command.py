"""The user's own command, run on the controller when a run ends or something in it is found slow.

It is told by JSON on its standard input, no shell reads its words, and it is ended after a minute. Another process
waits for it, this file run by itself: so the run never does, whatever the command does, and no exit code changes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT_S = 60.0
LOG_FILE = "told.log"


class HookCommand:
    """Runs `words` in the run's folder, if there are any, with output to told.log there. One at a time."""

    def __init__(self, words: Sequence[str], folder: Path, limit_s: float = LIMIT_S) -> None:
        self._words, self._folder, self._limit_s = tuple(words), folder.absolute(), limit_s
        self._running: subprocess.Popen[bytes] | None = None

    def tell(self, what: Mapping[str, object]) -> None:
        """Start it with `what`, unless it still runs. A failure to start it never affects the run."""
        if not self._words or (self._running is not None and self._running.poll() is None):
            return
        task = json.dumps({"words": self._words, "limit_s": self._limit_s, "what": json.dumps(what)})
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with contextlib.suppress(OSError), open(os.open(self._folder / LOG_FILE, flags, 0o600), "ab") as log:
            self._running = subprocess.Popen(
                [sys.executable, "-I", __file__],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
            )
            assert self._running.stdin is not None
            self._running.stdin.write(task.encode())
            self._running.stdin.close()


def cannot_run(words: Sequence[str]) -> str | None:
    """Return why the command cannot be run here; None if it can."""
    if shutil.which(words[0]) is None:
        return f"{words[0]}: no program of that name here"
    return None


def main() -> None:
    """Run the command of the task on standard input, and end it with all that it started when its time is over."""
    task = json.load(sys.stdin)
    try:
        child = subprocess.Popen(task["words"], stdin=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        sys.exit(f"{task['words'][0]}: {error.strerror}")
    try:
        child.communicate(task["what"].encode() + b"\n", timeout=task["limit_s"])
    except subprocess.TimeoutExpired:
        print(f"{task['words'][0]}: ended after {task['limit_s']:g} s", file=sys.stderr)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
