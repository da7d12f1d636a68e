"""Two consoles: results go to standard output, progress and errors to standard error."""

from __future__ import annotations

import os

from rich.console import Console

from holmes_core.errors import HolmesError

WIDTH_WITHOUT_TERMINAL = 120


def _console(to_stderr: bool) -> Console:
    """Tables keep their columns in a pipe or a log, where Rich would take 80 unless COLUMNS says otherwise."""
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_WITHOUT_TERMINAL
    return console


out = _console(to_stderr=False)
err = _console(to_stderr=True)


def show_error(error: HolmesError) -> None:
    """What happened, then what to do."""
    err.print("[bold red]error:[/] ", end="")
    err.print(error.what, markup=False, soft_wrap=True)
    err.print("[bold]hint:[/] ", end="")
    err.print(error.hint, markup=False, soft_wrap=True)
