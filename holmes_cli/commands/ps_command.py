"""`holmes ps`."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer
from rich.table import Table

from holmes_cli.screen.show_run import state_in_words
from holmes_cli.screen.terminal import out
from launcher.journal.follow_folder import read_plan
from launcher.journal.run_store import StoredRun, all_runs


def ps_command(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show runs that have ended, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON, one a line.")] = False,
) -> None:
    """List the runs that this user started from this machine."""
    runs = [stored for stored in all_runs() if everything or stored.run.state == "running"]
    if as_json:
        for stored in runs:
            record = {**stored.run.model_dump(mode="json"), "watched": stored.watched, "folder": str(stored.folder)}
            out.file.write(json.dumps(record) + "\n")
        return
    if not runs:
        out.print("no run" if everything else "no run is under way; `holmes ps --all` shows those that have ended")
        return
    table = Table()
    for heading in ("run", "state", "steps", "hosts", "age", "folder"):
        table.add_column(heading, overflow="fold")
    for stored in runs:
        table.add_row(*_row(stored))
    out.print(table)


def _row(stored: StoredRun) -> tuple[str, ...]:
    plan, run = read_plan(stored.folder), stored.run
    names = [node.host for node in plan.nodes]
    hosts = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    age_s = time.time() - run.started_at_s
    age = f"{age_s / 3600:.1f} h" if age_s > 3600 else f"{age_s / 60:.0f} min"
    return run.run_id, state_in_words(stored), f"{run.steps_done}/{plan.job.steps}", hosts, age, str(stored.folder)
