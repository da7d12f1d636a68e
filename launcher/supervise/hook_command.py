"""The user's own command, run on the controller when a run ends or part of it is slow.

The command gets JSON on its standard input. No shell reads its words. It is ended after a minute. A separate process,
this file run as a script, waits for it, so the run never waits and no exit code changes, whatever the command does.
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
    """Runs `words`, if any, in the run's folder, one at a time. The output goes to told.log in that folder."""

    def __init__(self, words: Sequence[str], folder: Path, limit_s: float = LIMIT_S) -> None:
        self._words, self._folder, self._limit_s = tuple(words), folder.absolute(), limit_s
        self._running: subprocess.Popen[bytes] | None = None

    def tell(self, what: Mapping[str, object]) -> None:
        """Start the command with `what`, unless it still runs. A failure to start it never affects the run."""
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
    """Return why the command cannot run here; None if it can."""
    if shutil.which(words[0]) is None:
        return f"{words[0]}: no such program on this machine"
    return None


def main() -> None:
    """Run the command given on standard input. When its time is over, end it and everything it started."""
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
