"""`holmes launch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.run_view import RunView
from holmes_cli.show_bundles import show_bundles
from holmes_cli.show_run import show_run
from holmes_core.errors import HolmesError
from holmes_core.inventory import Inventory
from holmes_core.job import Job
from holmes_core.plan import Plan, Source
from holmes_core.record import FileRecord, read_file, read_user_file
from launcher.launch import launch
from launcher.prepare import prepare
from launcher.ship import runtime_files


def launch_command(
    plan: Annotated[Path, typer.Argument(help="plan.json, from `holmes plan`.")],
    runs: Annotated[Path, typer.Option("--runs", help="Folder for the run's record and logs.")] = Path("runs"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every file, command and variable; touch nothing.")
    ] = False,
) -> None:
    """Start the plan on its hosts, watch it, and end it everywhere when it ends anywhere."""
    record = read_file(Plan, plan)
    _refuse_stale(plan, record)
    if dry_run:
        show_bundles(prepare(record, "dry-run"), runtime_files())
        return
    with RunView(record) as view:
        ended = launch(record, runs, view, view.progress)
    show_run(record, ended)
    if ended.run.exit_code:
        raise typer.Exit(ended.run.exit_code)


def _refuse_stale(path: Path, plan: Plan) -> None:
    """Raises HolmesError if the inventory or the job has changed since the plan was made from it."""
    inventory = _source_file(path, plan.inventory)
    if inventory.exists():
        _compare(path, inventory, read_file(Inventory, inventory), plan.inventory)
    job = _source_file(path, plan.job_source)
    if job.exists():
        _compare(path, job, read_user_file(Job, job), plan.job_source)


def _source_file(path: Path, source: Source) -> Path:
    return path.absolute().parent / source.path


def _compare(path: Path, file: Path, record: FileRecord, source: Source) -> None:
    if record.digest() != source.digest:
        raise HolmesError(
            f"{path}: stale: {file} has changed since (the plan is from {source.digest}, it is now {record.digest()})",
            "plan again: `holmes plan job.yaml`",
        )
