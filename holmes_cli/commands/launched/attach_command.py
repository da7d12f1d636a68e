"""`holmes attach`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from holmes_cli.islands.show_islands import refuse_whole
from holmes_cli.screen.run_view import RunView
from holmes_cli.screen.show_run import show_end
from holmes_cli.screen.terminal import err
from holmes_cli.watch_in_background import watch_in_background
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.plan import Plan
from holmes_core.records.run import Run
from launcher.journal.follow_folder import follow_events, read_plan
from launcher.journal.run_folder import PLAN_FILE, RUN_FILE, read_own, read_run
from launcher.journal.run_store import find_run
from launcher.prepare.user_variables import read_user_variables


def attach_command(
    run: Annotated[str, typer.Argument(help="A run's id, the start of it, or its folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON, one a line.")] = False,
) -> None:
    """Look at a run as it goes on; Ctrl-C stops looking and leaves the run alone."""
    stored = find_run(run)
    if stored.islands:
        refuse_whole(stored, "attach", "attach")
    plan = read_plan(stored.folder)
    if stored.watched == "unwatched":
        if not stored.run.settings.detached:
            raise HolmesError(
                f"run {stored.run.run_id}: its controller was killed, and its ranks have ended by themselves",
                f"`holmes stop {stored.run.run_id}` records that; start it again with `holmes launch`",
                ANSWER_IS_NO,
            )
        for cls, name in ((Run, RUN_FILE), (Plan, PLAN_FILE)):
            read_own(cls, stored.folder, name)
        # In the background what is missing could only be said into a log.
        read_user_variables(plan.job, os.environ, stored.folder, stored=True)
        watch_in_background(stored.folder)
    with RunView(plan, as_json) as view:
        view.take_run(stored.run.run_id, stored.run.started_at_s)
        try:
            for event in follow_events(stored.folder):
                view.show(event)
        except KeyboardInterrupt:
            err.print(f"the run goes on; `holmes stop {stored.run.run_id}` ends it")
            return
    ended = read_run(stored.folder)
    show_end(plan, ended, stored.folder, as_json)
    if ended.exit_code:
        raise typer.Exit(ended.exit_code)
