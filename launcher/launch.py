"""One launch from start to end. Whatever happens in between, every node is let go of and cleaned."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holmes_core.errors import HolmesError
from holmes_core.plan import Plan
from holmes_core.run import Failure, Run
from launcher.prepare import prepare
from launcher.run_folder import RunFolder, new_run_id
from launcher.start import Progress, RunningNodes, start
from launcher.stop import stop
from launcher.watch import View, Watch


@dataclass(frozen=True)
class Ended:
    """A launch that is over: its record, where it lies, the first failure if any, hosts that could not be cleaned."""

    run: Run
    folder: Path
    cause: Failure | None
    unanswered: tuple[str, ...]


def launch(plan: Plan, runs: Path, view: View, progress: Progress) -> Ended:
    """Run `plan` to its end, its first failure, or Ctrl-C (KeyboardInterrupt), and end it everywhere.

    Raises HolmesError when a node could not be made ready; then no rank was started and nothing is left behind.
    """
    run_id, started_at_s = new_run_id(), time.time()
    nodes = RunningNodes(prepare(plan, run_id))
    folder = RunFolder(runs, run_id, plan)
    watch = Watch(plan, nodes, folder, view, started_at_s)
    interrupted = False
    unanswered: tuple[str, ...] = ()
    try:
        folder.write_run(Run(run_id=run_id, plan_digest=plan.digest(), state="running", started_at_s=started_at_s))
        start(nodes, progress)
        watch.until_end()
    except KeyboardInterrupt:
        interrupted = True
    except HolmesError:
        folder.close()
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    finally:
        with _deaf_to_ctrl_c():
            unanswered = stop(nodes, watch.gone)
            folder.close()
    run = watch.result(interrupted)
    folder.write_run(run)
    return Ended(run, folder.path, watch.cause if run.failures else None, unanswered)


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A second Ctrl-C must not leave ranks behind: ending takes seconds and is bounded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
