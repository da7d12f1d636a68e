"""A rank does not outlive the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .launched_runs import REPOSITORY

CHILD = """
import time
from holmes_runtime.parent import die_with_parent
die_with_parent()
print("ready", flush=True)
time.sleep(60)
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
def test_a_killed_parent_takes_its_child_along() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert parent.stdout is not None
    child_pid = int(parent.stdout.readline())
    assert is_running(child_pid)

    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()

    deadline_s = time.monotonic() + 5
    while is_running(child_pid) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not is_running(child_pid)


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie waiting for whoever inherited it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
