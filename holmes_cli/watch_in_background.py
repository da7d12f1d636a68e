"""Starting `holmes control`, which goes on without this process and its terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import holmes_cli
from holmes_core.records.record_file import private_opener

_START = "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv.pop(1)]; from holmes_cli.app import main; main()"
"""`python -m holmes_cli` but for the working folder, which comes first there: any module of that name would be run.
Python's own option for it, -P, is of 3.11."""


def watch_in_background(folder: Path) -> None:
    """Start a process of its own session that watches the run; what it says goes to controller.log."""
    installed = Path(holmes_cli.__file__).parent.parent
    with open(folder / "controller.log", "ab", opener=private_opener) as log:
        subprocess.Popen(
            [sys.executable, "-c", _START, str(installed), "control", str(folder.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
