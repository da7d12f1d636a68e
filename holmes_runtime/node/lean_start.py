"""`python -m holmes_runtime.node.lean_start MODULE ARGS...`: runs MODULE's `main` with a faster start and end.

Importing torch creates a million objects that are not garbage. Searching them for garbage during the import takes about
a second per process, and destroying them one by one at the end takes another. If several ranks share few cores, that is
most of a short run. On SIGUSR1, by which the agent asks a rank that makes no progress, it prints its threads' stacks.
The agent's other signal is blocked, so that it waits for the thread that answers it (`health/position_report.py`).
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from holmes_runtime.config.messages import ASK_SIGNAL
from holmes_runtime.node.near_cpus import stay_near_gpu


def main() -> None:
    """Import and run MODULE. Leave at once when its `main` returns or raises."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {ASK_SIGNAL})
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    stay_near_gpu(os.environ)  # before torch is imported: threads inherit the CPUs of the thread that starts them
    gc.disable()
    run: Callable[[], int | None] = importlib.import_module(sys.argv[1]).main
    gc.freeze()
    gc.enable()
    sys.argv = sys.argv[1:]
    run_and_leave(run)


def run_and_leave(run: Callable[[], int | None]) -> NoReturn:
    """Run it, then leave with Python's usual exit code and messages, but without destroying torch's objects.

    Threads of torch may still run, after an error and while the last ones of a good run end. Occasionally one of them
    then dies from SIGABRT or SIGBUS, which would replace the exit code (pytorch issue 38228).
    """
    code = _exit_code(run)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_code(run: Callable[[], int | None]) -> int:
    """Run it. Return the exit code that Python would give, after printing what Python would print."""
    try:
        return run() or 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except Exception:
        sys.excepthook(*sys.exc_info())
    return 1


if __name__ == "__main__":
    main()
