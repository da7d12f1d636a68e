"""`holmes stop`."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.screen.terminal import err, out
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.plan import Plan
from holmes_core.records.run import Run
from launcher.journal.run_folder import PLAN_FILE, RUN_FILE, read_own, read_run
from launcher.journal.run_store import find_run
from launcher.nodes.end_unwatched import end_unwatched

LIMIT_S = 60.0


def stop_command(run: Annotated[str, typer.Argument(help="A run's id, the start of it, or its folder.")]) -> None:
    """End a run everywhere: its ranks, their agents and their files."""
    stored = find_run(run)
    run_id = stored.run.run_id
    if stored.watched == "ended":
        out.print(f"run {run_id} has ended already: {stored.run.state}", markup=False)
        return
    if stored.watched == "elsewhere" and stored.run.controller is not None:
        raise HolmesError(
            f"run {run_id}: is watched by process {stored.run.controller.pid} on {stored.run.controller.host}",
            "run `holmes stop` there; of a Slurm batch job, `scancel --signal=TERM --batch JOB` has it stop and save",
            ANSWER_IS_NO,
        )
    plan = read_own(Plan, stored.folder, PLAN_FILE)
    stored = replace(stored, run=read_own(Run, stored.folder, RUN_FILE))
    if stored.watched == "watched" and stored.run.controller is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stored.run.controller.pid, signal.SIGTERM)
        _wait(run_id, stored.folder, plan)
    else:
        left = end_unwatched(stored, plan)
        for what in left:
            err.print(f"not ended: {what}", markup=False, soft_wrap=True)
        if left:
            raise typer.Exit(ANSWER_IS_NO)
    out.print(f"run {run_id} is stopped", markup=False)


def _wait(run_id: str, folder: Path, plan: Plan) -> None:
    """Return when the run's controller has ended it. Raises HolmesError if it does not in time."""
    limit_s = LIMIT_S
    if plan.job.checkpoint is not None:
        limit_s += plan.job.timeout_s  # a rank that hangs is noticed sooner
        err.print(f"the ranks finish their step and save; `holmes stop {run_id}` again ends them at once", markup=False)
    deadline = time.monotonic() + limit_s
    while read_run(folder).state == "running":
        if time.monotonic() > deadline:
            raise HolmesError(
                f"run {run_id}: its controller did not end it within {limit_s:g} s",
                f"look into {folder}/controller.log; end that process, then `holmes stop {run_id}` again",
                ANSWER_IS_NO,
            )
        time.sleep(0.2)
