"""`holmes attach`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

from holmes_cli.islands.islands_view import LinesOfIslands
from holmes_cli.islands.show_islands import end_as_json, show_islands
from holmes_cli.screen.run_view import RunView
from holmes_cli.screen.show_run import show_end
from holmes_cli.screen.terminal import err
from holmes_cli.watch_in_background import watch_in_background
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.run import Run
from launcher.journal.follow_folder import follow_events, read_islands_plan, read_plan
from launcher.journal.run_events import RunEvent
from launcher.journal.run_folder import RUN_FILE, read_own, read_own_plan, read_run
from launcher.journal.run_store import StoredRun, find_run
from launcher.prepare.user_variables import read_user_variables


def attach_command(
    run: Annotated[str, typer.Argument(help="A run's id, the start of it, or its folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON, one per line.")] = False,
) -> None:
    """Follow a run; Ctrl-C stops following and leaves the run alone."""
    stored = find_run(run)
    if stored.watched == "unwatched":
        _watch_again(stored)
    with _shown(stored, as_json) as show:
        try:
            for island, event in follow_events(stored.folder):
                show(island, event)
        except KeyboardInterrupt:
            err.print(f"the run continues; `holmes stop {stored.run.run_id}` ends it")
            return
    ended = read_run(stored.folder)
    if ended.state == "running":
        _refuse_ended(stored)
    if stored.islands:
        (end_as_json if as_json else show_islands)(ended, stored.folder)
    else:
        show_end(read_plan(stored.folder), ended, stored.folder, as_json)
    if ended.exit_code:
        raise typer.Exit(ended.exit_code)


def _watch_again(stored: StoredRun) -> None:
    """Start another controller of a run that continues without one. Raises HolmesError."""
    if not stored.goes_on:
        _refuse_ended(stored)
    read_own(Run, stored.folder, RUN_FILE)
    # In the background an absent variable could only be reported in a log.
    read_user_variables(read_own_plan(stored.folder).job, os.environ, stored.folder, stored=True)
    watch_in_background(stored.folder)


def _refuse_ended(stored: StoredRun) -> NoReturn:
    raise HolmesError(
        f"run {stored.run.run_id}: its controller was killed, and its ranks have ended on their own",
        f"`holmes stop {stored.run.run_id}` records that; start it again with `holmes launch`",
        ANSWER_IS_NO,
    )


@contextmanager
def _shown(stored: StoredRun, as_json: bool) -> Iterator[Callable[[int, RunEvent], None]]:
    """Show the run inside the context, by the function that it yields: it takes an island and its event."""
    if stored.islands:
        lines = LinesOfIslands(read_islands_plan(stored.folder), as_json)
        lines.take_run(stored.run.run_id, stored.run.started_at_s)
        yield lines.show
        return
    with RunView(read_plan(stored.folder), as_json) as view:
        view.take_run(stored.run.run_id, stored.run.started_at_s)
        yield lambda _, event: view.show(event)
