"""`holmes launch`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from holmes_cli.commands.replan import Replanner
from holmes_cli.commands.watch_in_background import watch_in_background
from holmes_cli.screen.run_view import RunView
from holmes_cli.screen.show_bundles import show_bundles
from holmes_cli.screen.show_preflight import show_preflight
from holmes_cli.screen.show_run import show_run
from holmes_cli.screen.terminal import out
from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan, Source
from holmes_core.records.record import FileRecord
from holmes_core.records.record_file import read_file, read_user_file
from holmes_core.records.run import OnLoss, Settings
from launcher.journal.follow_folder import read_plan
from launcher.journal.run_folder import new_folder
from launcher.launch import Launch
from launcher.nodes.preflight import CHECKS, PreflightFailed
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import read_user_variables

PLAN_CURRENT = "plan-current"


def launch_command(
    plan: Annotated[Path, typer.Argument(help="plan.json, from `holmes plan`.")],
    runs: Annotated[Path, typer.Option("--runs", help="Folder for the run's record and logs.")] = Path("runs"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every file, command and variable; touch nothing.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the ranks start; the run goes on without this shell.")
    ] = False,
    force: Annotated[
        list[str] | None,
        typer.Option("--force", metavar="CHECK", help="Go on though this preflight check fails; may be given again."),
    ] = None,
    restarts: Annotated[
        int, typer.Option("--restarts", min=0, help="After a failure start again this often, from the last checkpoint.")
    ] = 0,
    on_loss: Annotated[
        str, typer.Option("--on-loss", help="When a host is lost: replan without it, wait for it, or stop.")
    ] = "stop",
    replan_when_slow: Annotated[
        bool, typer.Option("--replan-when-slow", help="Take the new plan when a host or link is slower than planned.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the last checkpoint, if there is one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON, one a line.")] = False,
) -> None:
    """Check the hosts, start the plan on them, watch it, and end it everywhere when it ends anywhere."""
    record = read_file(Plan, plan)
    forced = _forced(force or [])
    if PLAN_CURRENT not in forced:
        _refuse_stale(plan, record)
    settings = Settings(
        detached=detach,
        resume=resume,
        restarts=restarts,
        on_loss=_on_loss(on_loss),
        replan_when_slow=replan_when_slow,
    )
    if resume and record.job.checkpoint is None:
        raise HolmesError(f"{plan}: --resume: the job saves no checkpoints", "add `checkpoint:` to job.yaml")
    variables = read_user_variables(record.job, os.environ, _source_file(plan, record.job_source).parent)
    if dry_run:
        show_bundles(prepare(record, Attempt("dry-run", detached=detach, resume=resume), variables), record)
        return
    inventory = _inventory(plan, record)
    folder = new_folder(runs)
    with RunView(record, as_json) as view:
        run = Launch(folder, record, settings, variables, view, Replanner(inventory) if inventory else None)
        try:
            run.start(inventory, forced)
        except PreflightFailed as failed:
            show_preflight(failed.preflight)
            raise
        if detach:
            run.leave()
            watch_in_background(folder.path)
            out.print(folder.run_id, markup=False)
            return
        ended = run.run_to_end()
    show_run(read_plan(folder.path), ended.run, ended.folder, ended.stuck)
    if ended.run.exit_code:
        raise typer.Exit(ended.run.exit_code)


def _forced(names: list[str]) -> frozenset[str]:
    """The names, each that of a check that can be forced."""
    known = [PLAN_CURRENT, *(check.name for check in CHECKS if check.can_be_forced)]
    for name in names:
        if name not in known:
            raise HolmesError(f"--force {name}: no check that can be forced", f"there are {', '.join(known)}")
    return frozenset(names)


def _on_loss(word: str) -> OnLoss:
    for known in get_args(OnLoss):
        if word == known:
            return cast(OnLoss, word)
    raise HolmesError(f"--on-loss {word}: not known", f"one of {', '.join(get_args(OnLoss))}")


def _inventory(path: Path, plan: Plan) -> Inventory | None:
    """The inventory the plan was made from, if it is still beside it."""
    file = _source_file(path, plan.inventory)
    return read_file(Inventory, file) if file.exists() else None


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
            f"plan again: `holmes plan job.yaml`; or go on with `--force {PLAN_CURRENT}`",
        )
