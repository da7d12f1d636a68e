"""`holmes launch`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from holmes_cli.api import launch
from holmes_cli.islands.run_islands import dry_run_of_islands, refuse_settings, run_islands
from holmes_cli.launchable import PLAN_CURRENT, read_launchable, source_file
from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.run_view import RunView
from holmes_cli.screen.show_bundles import bundles_as_json, show_bundles
from holmes_cli.screen.show_run import show_end
from holmes_cli.screen.terminal import err, out, print_err
from holmes_core.errors import HolmesError
from holmes_core.hosts.transport_option import reached_by
from holmes_core.records.job import Job
from holmes_core.records.plan import IslandsPlan
from holmes_core.records.run import OnLoss, Run, Settings
from launcher.journal.follow_folder import read_plan
from launcher.nodes.interrupts import ctrl_c_ignored
from launcher.nodes.preflight import CHECKS, Preflight, PreflightFailed, remedy_of
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import read_user_variables

LOOK_AGAIN_S = 15.0


def launch_command(
    plan: Annotated[Path, typer.Argument(help="plan.json, from `holmes plan`.")],
    runs: Annotated[
        Path, typer.Option("--runs", envvar="HOLMES_RUNS", help="Folder for the run's record and logs.")
    ] = Path("runs"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be sent and started; --json: every word.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the ranks start; the run continues without this shell.")
    ] = False,
    force: Annotated[
        list[str] | None,
        typer.Option("--force", metavar="CHECK", help="Continue although this preflight check fails; may be repeated."),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option("--restarts", min=0, help="Restart at most this often after a failure, from the last checkpoint."),
    ] = 0,
    on_loss: Annotated[
        str, typer.Option("--on-loss", help="When a host is lost: replan without it, wait for it, or stop.")
    ] = "stop",
    replan_when_slow: Annotated[
        bool,
        typer.Option("--replan-when-slow", help="Switch to a new plan when a host or link is slower than planned."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="With --resume: begin at step 1 if there is no checkpoint.")
    ] = False,
    resume_step: Annotated[
        int | None,
        typer.Option(
            "--resume-step", metavar="STEP", min=1, help="Go back to the checkpoint after STEP; later ones give way."
        ),
    ] = None,
    via: Annotated[
        str | None, typer.Option("--via", metavar="slurm", help="Reach all hosts by steps of this Slurm job.")
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option("--trust", metavar="DIGEST", help="Launch this plan although you did not make it here."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="While others use the planned GPUs, wait and check again.")
    ] = False,
    allow_missing_island: Annotated[
        bool, typer.Option("--allow-missing-island", help="Exit with 0 even if an island was cut off at the end.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON, one per line.")] = False,
) -> None:
    """Check the hosts, start the plan on them, watch the run, and end it everywhere when it ends anywhere."""
    forced = _forced(force or [])
    record, inventory = read_launchable(plan, trust or (), may_be_stale=PLAN_CURRENT in forced)
    settings = Settings(
        detached=detach,
        resume=resume or resume_step is not None,
        from_scratch=from_scratch,
        resume_step=resume_step,
        restarts=restarts,
        on_loss=_on_loss(on_loss),
        replan_when_slow=replan_when_slow,
        allow_missing_island=allow_missing_island,
    )
    _check_resuming(plan, settings, record.job)
    job_folder = source_file(plan, record.job_source).parent
    if isinstance(record, IslandsPlan):
        refuse_settings(record, settings)
        if dry_run:
            dry_run_of_islands(record, settings, job_folder, as_json)
            return
        started = partial(start_checked, waits=wait)
        run = run_islands(record, inventory, runs, job_folder, settings, forced, via, as_json, started)
        if run.exit_code:
            raise typer.Exit(run.exit_code)
        return
    if allow_missing_island:
        raise HolmesError(f"--allow-missing-island: {plan} has no islands", "leave it out")
    if dry_run:
        variables = read_user_variables(record.job, os.environ, job_folder)
        attempt = Attempt(
            "dry-run", detached=detach, resume=settings.resume, from_scratch=from_scratch, resume_step=resume_step
        )
        show = bundles_as_json if as_json else show_bundles
        show(prepare(record, attempt, variables), record)
        return
    reached = reached_by(record, via)

    def start() -> Run:
        with RunView(reached, as_json) as view:
            return launch(reached, inventory, runs, job_folder, settings, forced, view)

    run = start_checked(start, wait)
    if detach:
        out.print(run.run_id, markup=False)
        return
    folder = runs / run.run_id
    with ctrl_c_ignored():  # the run has ended: only the result is left to show
        show_end(read_plan(folder), run, folder, as_json)
    if run.exit_code:
        raise typer.Exit(run.exit_code)


def _check_resuming(plan: Path, settings: Settings, job: Job) -> None:
    """Raise HolmesError for options that do not go with each other or with the job."""
    if settings.from_scratch and (not settings.resume or settings.resume_step is not None):
        raise HolmesError("--from-scratch: it goes with --resume alone", "without --resume a run begins at step 1")
    if settings.resume and job.checkpoint is None:
        own = "a script of your own resumes by itself: launch without it"
        hint = "add `checkpoint:` to job.yaml" if job.is_bundled else own
        raise HolmesError(f"{plan}: --resume: the job saves no checkpoints", hint)


def start_checked(start: Callable[[], Run], waits: bool, pause_s: float = LOOK_AGAIN_S) -> Run:
    """Return the result of `start`, and show checks that refuse it. If it `waits`, start again while GPUs are taken."""
    while True:
        try:
            return start()
        except PreflightFailed as failed:
            show_preflight(failed.preflight)
            if not waits or not failed.preflight.may_pass_later:
                raise
        err.print(f"the GPUs are in use; looking again in {pause_s:g} s; Ctrl-C gives up", markup=False)
        time.sleep(pause_s)


def show_preflight(preflight: Preflight) -> None:
    """Print a line per check, then each fault with its evidence and remedy."""
    faulty = {fault.check for fault in preflight.faults}
    refusing = {fault.check for fault in preflight.refusing}
    rows = []
    for check in CHECKS:
        word = "failed" if check.name in refusing else "forced" if check.name in faulty else "passed"
        if check.name in faulty or not preflight.faults:
            rows.append((check.name, check.makes_sure, word))
    err.print(fitted_table(("check", "makes sure that", ""), rows, err.width, "Preflight"))
    for fault in preflight.faults:
        print_err(f"host {fault.host}: {fault.check}: {fault.evidence}")
        print_err(f"  do: {remedy_of(fault)}")


def _forced(names: list[str]) -> frozenset[str]:
    """Return the names. Raises HolmesError for a check that cannot be forced."""
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
