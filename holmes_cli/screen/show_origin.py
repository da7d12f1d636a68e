"""Show files that this user did not write here, with all they would run and read, and ask for consent."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.terminal import err, neutral, print_err
from holmes_core.errors import HolmesError
from launcher.prepare.trusted_parts import TrustedPart


@dataclass(frozen=True)
class ForeignFile:
    """A file of another user or another machine."""

    path: Path
    digest: str
    brings: tuple[TrustedPart, ...]


def confirm_foreign(files: Sequence[ForeignFile], trusted: Collection[str]) -> None:
    """Show all that each file brings along and ask; files whose digest is `trusted` pass.

    Raises HolmesError (wrong usage) at a no, and without a terminal to ask at.
    """
    _refuse_unused(files, trusted)
    for file in files:
        if file.digest in trusted:
            continue
        _show(file)
        if sys.stdin.isatty() and err.is_terminal:
            if typer.confirm("Is all of that yours to run?", err=True):
                continue
            raise HolmesError(f"{file.path}: not launched", "plan it yourself, from your own hosts.yaml and job.yaml")
        raise HolmesError(
            f"{file.path}: not made here by you, and brings along what is listed above",
            f"plan it yourself from your own hosts.yaml and job.yaml; or, if all of that is yours to run, "
            f"`--trust {file.digest}`",
        )


def _refuse_unused(files: Sequence[ForeignFile], trusted: Collection[str]) -> None:
    """Raise HolmesError for a trusted digest of no file here: it is an older file's, or a slip."""
    unused = sorted(set(trusted) - {file.digest for file in files})
    if unused:
        known = ", ".join(f"{file.path} is {file.digest}" for file in files) or "no file here needs it"
        raise HolmesError(f"--trust {unused[0]}: the digest of no file to be trusted", known)


def _show(file: ForeignFile) -> None:
    rows = [(each.what, _one_line(each.value), _one_line(", ".join(each.where))) for each in file.brings]
    print_err(f"{file.path} was not made here by you. It would run, read and set:")
    err.print(fitted_table(("what", "value", "where"), rows, err.width, unwrapped=("what",)))


def _one_line(text: str) -> str:
    """Return the whole text in one line, without characters a table or a terminal would interpret."""
    return neutral(text).replace("\n", "\\n")
