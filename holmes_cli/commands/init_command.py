"""`holmes init`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

import templates
from holmes_cli.screen.terminal import out, print_out
from holmes_core.errors import HolmesError
from holmes_core.records.record_file import write_atomically

FILES = ("hosts.yaml", "job.yaml")


def init_command(
    folder: Annotated[Path, typer.Argument(help="Where to write them.")] = Path(),
) -> None:
    """Write a first hosts.yaml and job.yaml, never over an existing one."""
    there = [folder / name for name in FILES if (folder / name).exists()]
    if there:
        raise HolmesError(
            f"{', '.join(map(str, there))}: already there; nothing was written",
            f"name another folder: `holmes init FOLDER`; or move {' and '.join(path.name for path in there)} away",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HolmesError(f"{folder}: cannot be made: {error.strerror}", "name another folder") from None
    for name in FILES:
        write_atomically(folder / name, files(templates).joinpath(name).read_text(encoding="utf-8"))
        print_out(f"wrote {folder / name}")
    out.print(f"next: put your hosts and data into them, then holmes probe {folder / 'hosts.yaml'}", markup=False)
