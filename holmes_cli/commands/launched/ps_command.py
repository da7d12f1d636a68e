"""`holmes ps`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.show_run import state_in_words
from holmes_cli.screen.terminal import out
from holmes_core.errors import HolmesError
from holmes_core.records.plan import Plan
from holmes_core.units import format_duration, format_names
from launcher.journal.follow_folder import read_plan
from launcher.journal.run_store import StoredRun, all_runs


def ps_command(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show ended runs too.")] = False,
    hosts: Annotated[
        Path | None,
        typer.Option("--hosts", help="List the held GPUs of this hosts.yaml's hosts, with their runs and users."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON, one per line.")] = False,
) -> None:
    """List the runs that this user started from this machine."""
    if hosts is not None:
        from holmes_cli.gpu_holders import show_gpu_holders  # slow to import: it brings SSH

        show_gpu_holders(hosts, as_json)
        return
    runs = [stored for stored in all_runs() if everything or stored.run.state == "running"]
    if as_json:
        for stored in runs:
            record = {**stored.run.model_dump(mode="json"), "steps_done": stored.steps_done, "watched": stored.watched}
            out.file.write(json.dumps({**record, "folder": str(stored.folder)}) + "\n")
        return
    if not runs:
        out.print("no run" if everything else "no run is under way; `holmes ps --all` shows those that have ended")
        return
    show_runs([(stored, _plans(stored)) for stored in runs], time.time())


def show_runs(runs: Sequence[tuple[StoredRun, Sequence[Plan]]], now_s: float) -> None:
    """Print a row for each run, given with its plan or its islands' plans; with none where they cannot be read."""
    headings = ("run", "state", "steps", "hosts", "age")
    rows = [_row(stored, plans, now_s) for stored, plans in runs]
    out.print(fitted_table(headings, rows, out.width, unwrapped=("run", "age")))


def _plans(stored: StoredRun) -> Sequence[Plan]:
    """Return the plan of a run, or of each island; none where one cannot be read, which must not hide other runs."""
    try:
        return [read_plan(each.folder) for each in stored.islands or (stored,)]
    except HolmesError:
        return ()


def _row(stored: StoredRun, plans: Sequence[Plan], now_s: float) -> tuple[str, ...]:
    run, hosts = stored.run, format_names([node.host for plan in plans for node in plan.nodes], 4)
    steps = max((plan.job.steps for plan in plans), default="?")
    age = format_duration(now_s - run.started_at_s)
    return run.run_id, state_in_words(stored), f"{stored.steps_done}/{steps}", hosts or "plan.json cannot be read", age
