"""`holmes doctor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.screen.show_doctor import print_record, show_diagnosis
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.regular_file import open_regular
from prober.nccl_logs.diagnose import SOUND, WHOLE_LOG, diagnose
from prober.nccl_logs.log_facts import LogFacts
from prober.nccl_logs.read_log import read_log

STANDARD_INPUT = Path("-")
MAX_FILES = 16_384
MAX_BYTES = 64 * 2**30  # of one log


def doctor_command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="With --log: logs of the ranks of one run, in one file or many; - is standard input."),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="The files are NCCL's logs (NCCL_DEBUG=INFO) of the run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON instead.")] = False,
) -> None:
    """Say why a run that Holmes did not start is slow or fails: one verdict, from the logs of NCCL."""
    if not log or not files:
        hint = f"run it with {WHOLE_LOG}, then `holmes doctor --log FILE...`"
        raise HolmesError("holmes doctor reads NCCL's logs of a run, and none is named", hint)
    facts = LogFacts()
    if len(files) > MAX_FILES:
        raise HolmesError(
            f"{len(files)} logs are more than {MAX_FILES:,}", "pass the logs of some hosts, or join them by `cat`"
        )
    for file in files:
        _read(file, facts)
    if not any(size.messages for size in facts.files.values()):
        names = ", ".join(list(facts.files)[:3])
        hint = f"run the training with {WHOLE_LOG} and pass what the ranks print"
        raise HolmesError(f"{names}: no line of NCCL in the log", hint)
    diagnosis = diagnose(facts)
    if as_json:
        print_record(diagnosis, facts)
    else:
        show_diagnosis(diagnosis, facts)
    if diagnosis.cause != SOUND and not diagnosis.is_open:
        raise typer.Exit(ANSWER_IS_NO)


def _read(file: Path, facts: LogFacts) -> None:
    if file == STANDARD_INPUT:
        read_log(sys.stdin.buffer, "standard input", facts)
        return
    try:
        with open_regular(file, MAX_BYTES) as log:
            read_log(log, os.fsencode(file).decode("utf-8", "replace"), facts)
    except OSError as error:
        hint = "name logs that this user may read; pass a pipe as standard input: `holmes doctor --log -`"
        raise HolmesError(f"{file}: cannot be read: {error.strerror}", hint) from None
