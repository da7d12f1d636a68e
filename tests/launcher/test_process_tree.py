"""What a process started is found and ended by ids, wherever it has moved to."""

from __future__ import annotations

import subprocess
import sys
import time

SCRIPT = """
import subprocess, sys, time
from holmes_runtime.process_tree import adopt_orphans, descendants, end_descendants
adopt_orphans()
# A child in a session of its own that ignores TERM, started by a shell that ends at once: an orphan.
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
shell = subprocess.Popen(["/bin/sh", "-c", "setsid " + sys.executable + ' -c "$0" &', stubborn], stdout=subprocess.PIPE)
assert shell.stdout.readline() == b"up\\n"
shell.wait()
before = len(descendants())
end_descendants(0.3)
print(before, len(descendants()))
"""


def test_orphan_that_ignores_term_is_ended() -> None:
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.split() == ["1", "0"]
    assert time.monotonic() - started < 15
