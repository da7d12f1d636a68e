"""What a process started is found and ended by ids, wherever it has moved to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.eventually import eventually

ROOT = Path(__file__).parent.parent.parent

SCRIPT = """
import subprocess, sys, time
from holmes_runtime.node.process_tree import adopt_orphans, descendants, end_descendants
adopt_orphans()
# A child in a session of its own that ignores TERM, started by a shell that ends at once: an orphan.
stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
shell = subprocess.Popen(["/bin/sh", "-c", "setsid " + sys.executable + ' -c "$0" &', stubborn], stdout=subprocess.PIPE)
assert shell.stdout.readline() == b"up\\n"
shell.wait()
before = len(descendants())
end_descendants(0.3)
print(before, len(descendants()))
"""


def test_orphan_that_ignores_term_is_ended() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.split() == ["1", "0"]


CHILD = """
import time
from holmes_runtime.node.process_tree import die_with_parent
die_with_parent()
print("ready", flush=True)
time.sleep(600)
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def test_a_killed_parent_takes_its_child_along() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    child_pid = int(parent.stdout.readline())
    assert is_running(child_pid)

    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()

    assert eventually(lambda: not is_running(child_pid))


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie waiting for whoever inherited it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
