"""`holmes logs`."""

from __future__ import annotations

from typing import Annotated

import typer

from holmes_cli.commands.launched.asked_run import AskedRun, asked_run
from holmes_cli.islands.show_islands import refuse_whole
from holmes_cli.screen.terminal import out
from holmes_core.errors import HolmesError
from launcher.journal.follow_folder import follow_logs, log_lines, read_plan
from launcher.journal.run_events import LogLine


def logs_command(
    run: AskedRun = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only what this rank printed.")] = None,
    times: Annotated[bool, typer.Option("--times", "-t", help="Before each line, when it came (UTC).")] = False,
) -> None:
    """Print what the ranks printed."""
    stored = asked_run(run)
    if stored.islands and (follow or rank is not None):
        refuse_whole(stored, "--follow, --rank", "logs")
    for island in stored.islands:
        for when, line in log_lines(island.folder, None):
            _print(f"{island.folder.name} {line.host}", line, f"{when or '-'} " if times else "")
    if stored.islands:
        return
    folder = stored.folder
    size = read_plan(folder).world_size
    if rank is not None and rank >= size:
        raise HolmesError(f"--rank {rank}: run {folder.name} has {size} ranks", f"give one of 0 to {size - 1}")
    following = follow_logs(folder, rank) if follow else iter(())
    for lines in (log_lines(folder, rank), following):
        for when, line in lines:
            _print(line.host, line, f"{when or '-'} " if times else "")


def _print(where: str, line: LogLine, stamp: str = "") -> None:
    out.print(f"{stamp}{where} rank {line.rank} | {line.line}", markup=False, soft_wrap=True)
