"""`holmes doctor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.commands.probe_command import hosts_named
from holmes_cli.screen.show_doctor import print_record, show_diagnosis
from holmes_cli.screen.show_watched_run import print_watched, show_watched
from holmes_cli.screen.terminal import err, out
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.hosts.allocation import allocation_hosts
from holmes_core.records.regular_file import open_regular
from holmes_core.remote.slurm.slurm_word import job_environment
from prober.anonymize import anonymize
from prober.asking.recording import HostRecording, read_recorded_hosts
from prober.nccl_logs.diagnose import SOUND, WHOLE_LOG, diagnose
from prober.nccl_logs.log_facts import LogFacts
from prober.nccl_logs.read_log import read_log
from prober.running.diagnose_run import diagnose_run
from prober.running.watch_hosts import run_of, watch_hosts

STANDARD_INPUT = Path("-")
MAX_FILES = 16_384
MAX_BYTES = 64 * 2**30  # of one log


def doctor_command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="hosts.yaml or host names of a run that goes on; with --log its logs, - is standard input."
        ),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="The files are NCCL's logs (NCCL_DEBUG=INFO) of the run.")] = False,
    slurm_job: Annotated[
        str | None, typer.Option("--slurm", metavar="JOBID", help="Watch the nodes of this Slurm job.")
    ] = None,
    seconds: Annotated[int, typer.Option("--seconds", min=2, max=3600, help="Watch the run for so long.")] = 60,
    record: Annotated[Path | None, typer.Option("--record", help="Keep every raw output in this folder.")] = None,
    replay_folder: Annotated[
        Path | None, typer.Option("--replay", help="Read the recording in this folder; ask no host.")
    ] = None,
    anonymized: Annotated[
        Path | None,
        typer.Option("--anonymize", help="Copy what --replay reads to this folder, without names and addresses."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON instead.")] = False,
) -> None:
    """Say why a run that Holmes did not start is slow or fails: a verdict while it runs, or from NCCL's logs."""
    ways = {"--slurm": slurm_job, "--record": record, "--replay": replay_folder, "--anonymize": anonymized}
    _refuse_mixed(log, files or [], {name for name, value in ways.items() if value is not None})
    if log:
        cause = _of_logs(files or [], as_json)
    elif anonymized is not None:
        if replay_folder is None:
            raise HolmesError("--anonymize copies a recording", "name it: `--replay DIR`, from `--record DIR`")
        anonymize(replay_folder, anonymized)
        out.print(f"{anonymized}: without names and addresses; read it before you share it", markup=False)
        return
    else:
        run = run_of(_recorded(files or [], slurm_job, seconds, record, replay_folder), slurm_job)
        watched = diagnose_run(run)
        (print_watched if as_json else show_watched)(watched, run)
        cause = watched.cause
    if cause != SOUND:
        raise typer.Exit(ANSWER_IS_NO)


def _refuse_mixed(log: bool, files: list[Path], ways: set[str]) -> None:
    """Raise HolmesError for options that do not go together: each would be passed over in silence."""
    if log and ways:
        raise HolmesError(f"--log reads files alone, not with {', '.join(sorted(ways))}", "leave one of them out")
    given = [*map(str, files), *sorted(ways - {"--anonymize", "--replay"})]
    if "--anonymize" in ways and given:
        hint = "record first, then `holmes doctor --replay DIR --anonymize COPY`"
        raise HolmesError(f"--anonymize copies a recording, and is given with {', '.join(given[:3])}", hint)


def _recorded(
    files: list[Path], slurm_job: str | None, seconds: int, record: Path | None, replay_folder: Path | None
) -> dict[str, HostRecording]:
    """Return what hosts answer, or answered."""
    if sum((bool(files), slurm_job is not None, replay_folder is not None)) != 1 or len(files) > 1:
        hint = f"run it with {WHOLE_LOG}, then `holmes doctor --log FILE...`; or watch it: `holmes doctor hosts.yaml`"
        raise HolmesError(
            "holmes doctor reads NCCL's logs of a run, or watches its hosts, and one is to be named", hint
        )
    if replay_folder is not None:
        return read_recorded_hosts(replay_folder)
    environ = os.environ if slurm_job is None else job_environment(slurm_job, os.environ)
    hosts = hosts_named(str(files[0])) if slurm_job is None else allocation_hosts(environ)
    with err.status(f"watching {len(hosts.hosts)} hosts for {seconds} s") as status:
        return watch_hosts(hosts, seconds, lambda name, state: status.update(f"{name}: {state}"), record, environ)


def _of_logs(files: list[Path], as_json: bool) -> str | None:
    """Print the diagnosis of NCCL's logs, and return its cause."""
    if not files:
        hint = f"run it with {WHOLE_LOG}, then `holmes doctor --log FILE...`"
        raise HolmesError("holmes doctor --log reads NCCL's logs of a run, and none is named", hint)
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
    (print_record if as_json else show_diagnosis)(diagnosis, facts)
    return SOUND if diagnosis.is_open else diagnosis.cause


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
