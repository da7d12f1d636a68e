"""The run for a command that only reads: the named run, or else the last one started."""

from __future__ import annotations

from typing import Annotated

import typer

from holmes_cli.screen.terminal import err
from launcher.journal.run_store import StoredRun, find_run, last_run

AskedRun = Annotated[
    str | None, typer.Argument(help="A run's id, the start of it, or its folder.", show_default="the last run")
]


def asked_run(run: str | None) -> StoredRun:
    """Return the named run, or the last one, whose id is then printed to standard error.

    Raises:
        HolmesError: There is no such run, or none at all.
    """
    if run is not None:
        return find_run(run)
    stored = last_run()
    err.print(f"the last run: {stored.run.run_id}", markup=False)
    return stored
