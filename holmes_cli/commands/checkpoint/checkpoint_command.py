"""`holmes checkpoint`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.commands.checkpoint.gather_checkpoint import damaged, gather
from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.terminal import out, print_err, print_out
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.regular_file import is_there
from holmes_core.units import format_bytes
from holmes_runtime.node.checkpoint_files.checkpoint_folder import newest_in
from holmes_runtime.node.checkpoint_files.description import whose_weights
from holmes_runtime.node.checkpoint_files.whole_checkpoints import (
    BestCheckpoint,
    Offers,
    OtherRun,
    WholeCheckpoint,
    best_of,
    found_in,
    offers_in,
)

HEADINGS = ("checkpoint", "start", "files", "bytes", "whole")
MISSING_SHOWN = 10


class CheckpointAction(str, Enum):
    """An operation on the folders."""

    LIST = "list"
    VERIFY = "verify"
    GATHER = "gather"
    EXPORT = "export"


MAKES_A_FOLDER = CheckpointAction.GATHER, CheckpointAction.EXPORT


def checkpoint_command(
    action: Annotated[
        CheckpointAction,
        typer.Argument(help="List checkpoints, read and check them, make one folder, or a model for transformers."),
    ],
    folders: Annotated[
        list[Path], typer.Argument(help="A run's `checkpoint.path`; with hosts' own disks, a copy of each host's.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="For gather and export: the folder to write, new or empty.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="For gather: the lowest validation loss instead of the newest.")
    ] = False,
    published: Annotated[
        Path | None,
        typer.Option("--published", help="For export: the model the run began with, if not at `weights`."),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="For export: merge adapters into the model they were trained on.")
    ] = False,
) -> None:
    """Show, check, gather or export a run's checkpoints, on one disk or on the disks of several hosts."""
    _check_paths(action, folders, output)
    if best and action != CheckpointAction.GATHER:
        raise HolmesError(f"{action.value}: --best is for gather", "gather PATH... --output FOLDER --best")
    if action == CheckpointAction.EXPORT:
        _export(folders, output or Path(), published, merge)
        return
    if merge or published is not None:
        raise HolmesError(f"{action.value}: --published and --merge are for export", "export PATH --output FOLDER")
    host = os.uname().nodename
    offers = [offers_in(host, folder) for folder in folders]
    try:
        found = found_in(offers)
    except OtherRun as error:
        raise HolmesError(str(error), "name the folders of one run") from None
    faults = [fault for each in offers for fault in each.faults]
    if not found and not faults:
        named = ", ".join(map(str, folders))
        raise HolmesError(f"{named}: no checkpoint there", "name the `checkpoint.path` of a run", ANSWER_IS_NO)
    if action == CheckpointAction.VERIFY:
        faults += [fault for each in found for fault in damaged(each, folders)]
    if action == CheckpointAction.GATHER:
        _gather(found, faults, folders, output or Path(), best)
    else:
        _show(found, folders, offers, faults, action)


def _check_paths(action: CheckpointAction, folders: Sequence[Path], output: Path | None) -> None:
    for folder in folders:
        if not folder.is_dir():
            raise HolmesError(f"{folder} is not a folder", "name the `checkpoint.path` of a run")
    if (action in MAKES_A_FOLDER) != (output is not None):
        raise HolmesError(
            f"{action.value}: --output is for gather and export, which need it", "gather PATH... --output FOLDER"
        )
    if output is not None and (output.is_file() or (output.is_dir() and any(output.iterdir()))):
        raise HolmesError(f"--output {output} exists and is not empty", "name another folder")


def _show(
    found: Sequence[WholeCheckpoint],
    folders: Sequence[Path],
    offers: Sequence[Offers],
    faults: Sequence[str],
    action: CheckpointAction,
) -> None:
    """Print the table, the faults and the next step; exit with code 1 for faults in `verify` or without a whole
    checkpoint."""
    best = best_of(found)
    headings = (*HEADINGS[:-1], "validation loss", *HEADINGS[-1:]) if best is not None else HEADINGS
    rows = []
    for each in found:
        held = sum(bool(holders) for holders in each.holders.values())
        size_bytes = sum(file.size_bytes for file in each.offer.files)
        files = f"{held} of {len(each.offer.files)}"
        said = (each.offer.name, str(each.offer.generation), files, format_bytes(size_bytes))
        validated = (_loss_of(each, best),) if best is not None else ()
        rows.append((*said, *validated, "yes" if each.is_whole else "no"))
    out.print(fitted_table(headings, rows, out.width))
    for each in found:
        missing = [file for file in each.offer.files if not each.holders[file.name]]
        for file, why in list(zip(missing, each.lacking, strict=True))[:MISSING_SHOWN]:
            lies_here = any(is_there(folders[at] / each.offer.name / file.name) for at in each.folders)
            where = f"is not whole: {why}" if lies_here else "is in none of these folders"
            had = f"it was on {', '.join(file.hosts)}"
            print_out(f"{each.offer.name}: {file.name} {where}; {had}")
        if words := whose_weights(folders[each.folders[0]] / each.offer.name):
            print_out(f"{each.offer.name}: {words}")
    for fault in faults:
        print_out(fault)
    whole = [each.offer.name for each in found if each.is_whole]
    if action == CheckpointAction.VERIFY and not faults and whole:
        out.print("every byte is as it was written", soft_wrap=True)
    if not whole or (action == CheckpointAction.VERIFY and faults):
        raise typer.Exit(ANSWER_IS_NO)
    named = " ".join(each.path for each in offers)
    print_err(f"next: holmes checkpoint gather {named} -o FOLDER, or `holmes launch --resume`")


def _loss_of(found: WholeCheckpoint, best: BestCheckpoint) -> str:
    """Return the validation loss of a checkpoint, the best one marked."""
    if found.validated is None:
        return "-"
    is_best = found.is_whole and found.validated == best
    return f"{found.validated.loss:.4f}{' (best)' if is_best else ''}"


def _gather(
    found: Sequence[WholeCheckpoint], faults: Sequence[str], folders: Sequence[Path], output: Path, best: bool
) -> None:
    """Make one folder of the newest whole checkpoint, or of the best one."""
    for fault in faults:
        print_err(fault)
    lowest = best_of(found)
    if best and lowest is None and any(each.is_whole for each in found):
        raise HolmesError(
            "--best: no whole checkpoint in these folders has a validation loss",
            "leave --best out for the newest; a job with `evaluation:` saves the losses of those it evaluates",
            ANSWER_IS_NO,
        )
    whole = (each for each in found if each.is_whole)
    wanted = next((each for each in whole if not best or each.validated == lowest), None)
    if wanted is None:
        hosts = sorted({host for each in found[:1] for file in each.offer.files for host in file.hosts})
        hint = f"add the folders of more hosts: it was saved on {', '.join(hosts)}" if hosts else "name another folder"
        why = "".join(f": {fault}" for each in found[:1] for fault in each.lacking[:1])
        raise HolmesError(f"no checkpoint is whole in these folders{why}", hint, ANSWER_IS_NO)
    size_bytes = gather(wanted, folders, output)
    print_out(f"checkpoint: {output / wanted.offer.name} ({format_bytes(size_bytes)})")
    print_err(
        f"next: `checkpoint: {{path: {output.absolute()}}}` on one host and `holmes launch --resume`, "
        f"or holmes checkpoint export {output} -o FOLDER"
    )


def _export(folders: Sequence[Path], output: Path, published: Path | None, merge: bool) -> None:
    """Write a model for transformers, or adapters for peft, of the newest checkpoint in the only folder."""
    from holmes_runtime.export import export  # imports torch, so only where it is used

    if len(folders) > 1:
        raise HolmesError(
            f"export: reads one folder, but {len(folders)} are named",
            "join them: holmes checkpoint gather PATH... -o FOLDER",
        )
    try:
        count = export(folders[0], output, published, print_err, merge)
    except (OSError, ValueError) as error:
        raise HolmesError(
            f"export: {error}", "`holmes checkpoint verify PATH` reads every byte that was saved"
        ) from None
    print_out(f"{count} tensors: {output}")
    if words := whose_weights(newest_in(folders[0]) or folders[0]):
        print_out(words)
