"""Start `holmes control`, which continues without this process and its terminal."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from holmes_cli.own_process import holmes_words
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.record_file import private_opener
from launcher.journal.run_folder import RUN_FILE, read_run

LOG_FILE = "controller.log"
POLL_S = 0.1
SHOWN_LINES = 2  # of its last words: an error and its hint


def watch_in_background(folder: Path) -> None:
    """Start a process of its own session, and return once it watches the run; its output goes to controller.log.

    Raises:
        HolmesError: It ended without having watched the run.
    """
    with open(folder / LOG_FILE, "ab", opener=private_opener) as log:
        process = subprocess.Popen(
            holmes_words("control", str(folder.absolute())),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while not _is_taken(folder, process.pid):
        if process.poll() is not None and not _is_taken(folder, process.pid):
            said = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
            raise HolmesError(
                f"run {folder.name}: its background watcher ended: {' | '.join(said)}",
                f"its output is in {folder / LOG_FILE}; `holmes stop {folder.name}` ends the run",
                ANSWER_IS_NO,
            )
        time.sleep(POLL_S)


def _is_taken(folder: Path, pid: int) -> bool:
    """Return True if that process watches the run, or has watched it to its end."""
    if not (folder / RUN_FILE).exists():
        return False
    run = read_run(folder)
    return run.state != "running" or (run.controller is not None and run.controller.pid == pid)
