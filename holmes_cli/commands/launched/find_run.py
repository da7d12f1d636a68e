"""The run for a command that only reads: the named one, else the one that was started last."""

from __future__ import annotations

from typing import Annotated

import typer

from holmes_cli.screen.terminal import err
from launcher.journal.run_store import StoredRun, find_run, last_run

AskedRun = Annotated[
    str | None, typer.Argument(help="A run's id, the start of it, or its folder.", show_default="the last run")
]


def asked_run(run: str | None) -> StoredRun:
    """Return that run, and say on standard error which one was taken where none was named.

    Raises:
        HolmesError: There is no such run, or no run at all.
    """
    if run is not None:
        return find_run(run)
    stored = last_run()
    err.print(f"the last run: {stored.run.run_id}", markup=False)
    return stored
