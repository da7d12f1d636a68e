"""The owner's end of the reaper: what is made is recorded here, and ended here."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from tests.testbed import reaper
from tests.testbed.bed_process import BedError, bed_environment


class Estate:
    """Everything one bed has made, known to a reaper process that removes it when the owner ends or dies.

    The write end of the pipe is closed on exec, so no process of the bed keeps the reaper waiting.
    """

    def __init__(self) -> None:
        """Starts the reaper; nothing is recorded yet."""
        read_end, self._write_end = os.pipe()
        with os.fdopen(read_end) as lines:
            self._reaper = subprocess.Popen(
                [sys.executable, "-I", "-S", reaper.__file__],
                stdin=lines,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=bed_environment(),
                cwd="/",
                start_new_session=True,
            )

    def record_folder(self, folder: Path) -> None:
        """To be called before `folder` is made."""
        self._record(f"folder {folder}")

    def record_namespace(self, name: str) -> None:
        """To be called before the namespace is made."""
        self._record(f"namespace {name}")

    def record_process(self, pid: int) -> None:
        """To be called as soon as the process is started."""
        start_time = reaper.process_start_time(pid)
        if start_time is not None:
            self._record(f"process {pid} {start_time}")

    def settle(self) -> None:
        """Has the reaper remove everything, and waits for it; raises BedError naming what could not be removed."""
        with contextlib.suppress(BrokenPipeError):  # a reaper that is gone already is told by its exit status
            self._record("end")
        os.close(self._write_end)
        _, complaints = self._reaper.communicate(timeout=2 * reaper.PATIENCE_S)
        if self._reaper.returncode != 0:
            told = complaints.strip() or "it said nothing"
            raise BedError(f"the test bed is not all gone, its reaper exited with {self._reaper.returncode}: {told}")

    def _record(self, line: str) -> None:
        os.write(self._write_end, f"{line}\n".encode())
