"""Starting `holmes control`, which goes on without this process and its terminal."""

from __future__ import annotations

import subprocess
from pathlib import Path

from holmes_cli.own_process import holmes_words
from holmes_core.records.record_file import private_opener


def watch_in_background(folder: Path) -> None:
    """Start a process of its own session that watches the run; what it says goes to controller.log."""
    with open(folder / "controller.log", "ab", opener=private_opener) as log:
        subprocess.Popen(
            holmes_words("control", str(folder.absolute())),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
