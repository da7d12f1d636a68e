"""`holmes stop`."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.screen.terminal import err, out, print_err
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.plan import Plan
from holmes_core.records.run import Run
from launcher.journal.run_folder import PLAN_FILE, RUN_FILE, read_own, read_run
from launcher.journal.run_store import StoredRun, find_run
from launcher.nodes.end_unwatched import end_unwatched, record_stopped

LIMIT_S = 60.0


def stop_command(run: Annotated[str, typer.Argument(help="A run's id, the start of it, or its folder.")]) -> None:
    """End a run everywhere: its ranks, their agents and their files."""
    stored = find_run(run)
    run_id = stored.run.run_id
    _refuse_what_others_end(stored)
    if stored.watched == "ended":
        out.print(f"run {run_id} has ended already: {stored.run.state}", markup=False)
        return
    parts = [
        (each, read_own(Plan, each.folder, PLAN_FILE))
        for each in stored.islands or (stored,)
        if each.run.state == "running"
    ]
    stored = replace(stored, run=read_own(Run, stored.folder, RUN_FILE))
    if stored.watched == "watched" and stored.run.controller is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stored.run.controller.pid, signal.SIGTERM)
        _wait(run_id, stored.folder, [plan for _, plan in parts])
        out.print(f"run {run_id} is stopped", markup=False)
        return
    ended = _stop_detached(stored, parts)
    left = _end_by_ids(stored, parts) if ended is None else ended.not_ended
    for what in left:
        print_err(f"not ended: {what}")
    if left:
        raise typer.Exit(ANSWER_IS_NO)
    if ended is None or ended.state == "stopped":
        out.print(f"run {run_id} is stopped", markup=False)
    else:
        out.print(f"run {run_id} had ended: {ended.state}, {ended.steps_done} steps", markup=False)


def _refuse_what_others_end(stored: StoredRun) -> None:
    """Raise HolmesError for an island, and for a run whose controller is on another machine."""
    run_id = stored.run.run_id
    if stored.whole is not None:
        whole = stored.whole.run.run_id
        raise HolmesError(f"run {run_id}: is an island of {whole}", f"`holmes stop {whole}` ends all of them")
    if stored.watched == "elsewhere" and stored.run.controller is not None:
        raise HolmesError(
            f"run {run_id}: is watched by process {stored.run.controller.pid} on {stored.run.controller.host}",
            "run `holmes stop` there; of a Slurm batch job, `scancel --signal=TERM --batch JOB` has it stop and save",
            ANSWER_IS_NO,
        )


def _end_by_ids(stored: StoredRun, parts: Sequence[tuple[StoredRun, Plan]]) -> tuple[str, ...]:
    """End the remains of a run without a controller. Return a line for each host with processes left."""
    left = [
        what
        for part, plan in parts
        for what in end_unwatched(replace(part, run=read_own(Run, part.folder, RUN_FILE)), plan)
    ]
    if stored.islands:
        record_stopped(stored)
    return tuple(left)


def _stop_detached(stored: StoredRun, parts: Sequence[tuple[StoredRun, Plan]]) -> Run | None:
    """Return the outcome of a detached run whose controller is gone; None if only its recorded ids can end it."""
    if stored.islands or not stored.goes_on or not parts:
        return None
    from holmes_cli.control_command import stop_unwatched  # slow to import: it brings the launcher

    return stop_unwatched(stored.folder, stored.run, parts[0][1])


def _wait(run_id: str, folder: Path, plans: Sequence[Plan]) -> None:
    """Wait until the run's controller has ended it. Raises HolmesError if it does not in time."""
    limit_s = LIMIT_S
    saving = [plan.job.timeout_s for plan in plans if plan.job.checkpoint is not None]
    if saving:
        limit_s += max(saving)  # a rank that hangs is noticed sooner
        err.print(f"the ranks finish their step and save; `holmes stop {run_id}` again ends them at once", markup=False)
    deadline = time.monotonic() + limit_s
    while read_run(folder).state == "running":
        if time.monotonic() > deadline:
            raise HolmesError(
                f"run {run_id}: its controller did not end it within {limit_s:g} s",
                f"see {folder}/controller.log; end that process, then run `holmes stop {run_id}` again",
                ANSWER_IS_NO,
            )
        time.sleep(0.2)
