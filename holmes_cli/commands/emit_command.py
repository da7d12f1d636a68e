"""`holmes emit`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.launchable import read_launchable, source_file
from holmes_cli.screen.terminal import print_out
from holmes_core.errors import HolmesError
from holmes_core.records.plan import IslandsPlan
from launcher.emit.emit import FORMATS, START, check_format, emit
from launcher.emit.write_folder import write_folder
from launcher.prepare.user_variables import read_user_variables


def emit_command(
    plan: Annotated[Path, typer.Argument(help="plan.json, from `holmes plan`.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="FORMAT", is_eager=True, callback=check_format, help=f"One of {', '.join(FORMATS)}."
        ),
    ],
    folder: Annotated[Path, typer.Option("--output", "-o", help="The folder to write, new or empty.")],
    trust: Annotated[
        list[str] | None,
        typer.Option("--trust", metavar="DIGEST", help="Write this plan although you did not make it here."),
    ] = None,
) -> None:
    """Write a plan as files for another launcher: torchrun, Slurm, MPI, Kubernetes, or plain files to read."""
    record, _ = read_launchable(plan, trust or (), may_be_stale=False)
    if isinstance(record, IslandsPlan):
        raise HolmesError(
            f"{plan}: a plan of islands cannot be emitted: islands meet at the controller of `holmes launch`",
            "launch it; or plan without `islands` in job.yaml",
        )
    variables = read_user_variables(record.job, os.environ, source_file(plan, record.job_source).parent)
    files = emit(record, to, variables)
    write_folder(folder, files)
    own = [name for name in files if "/" not in name]
    print_out(f"{folder}: {', '.join(own)}")
    print_out(f"next: {START[to]}")
