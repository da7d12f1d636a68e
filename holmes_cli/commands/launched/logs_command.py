"""`holmes logs`."""

from __future__ import annotations

from itertools import chain
from typing import Annotated

import typer

from holmes_cli.commands.launched.find_run import AskedRun, asked_run
from holmes_cli.islands.show_islands import refuse_whole
from holmes_cli.screen.terminal import print_out
from holmes_core.errors import HolmesError
from launcher.journal.follow_folder import follow_logs, log_lines, read_plan
from launcher.journal.run_store import StoredRun


def logs_command(
    run: AskedRun = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the run ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only what this rank printed.")] = None,
    times: Annotated[bool, typer.Option("--times", "-t", help="Show when each line came (UTC).")] = False,
) -> None:
    """Print the output of the ranks."""
    stored = asked_run(run)
    parts = stored.islands or (stored,)
    if rank is not None:
        _refuse_rank(stored, rank)
    past = ((number, line) for number, part in enumerate(parts) for line in log_lines(part.folder, rank))
    for island, (when, line) in chain(past, follow_logs(stored.folder, rank) if follow else ()):
        stamp, whole = f"{when or '-'} " if times else "", f"island {island}: " if stored.islands else ""
        print_out(f"{stamp}{whole}{line.host} rank {line.rank} | {line.line}")


def _refuse_rank(stored: StoredRun, rank: int) -> None:
    """Raise HolmesError for a rank that the run does not have; each island has its own."""
    if stored.islands:
        refuse_whole(stored, f"--rank {rank}", "logs")
    size = read_plan(stored.folder).world_size
    if rank >= size:
        raise HolmesError(f"--rank {rank}: run {stored.folder.name} has {size} ranks", f"give one of 0 to {size - 1}")
