"""Starting `holmes control`, which goes on without this process and its terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def watch_in_background(folder: Path) -> None:
    """Start a process of its own session that watches the run; what it says goes to controller.log."""
    with open(folder / "controller.log", "ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "holmes_cli", "control", str(folder.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
