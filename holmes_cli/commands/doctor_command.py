"""`holmes doctor`."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from holmes_cli.commands.probe_command import hosts_named, usual_inventory
from holmes_cli.screen.show_doctor import print_record, show_diagnosis
from holmes_cli.screen.show_watched_run import print_watched, show_watched
from holmes_cli.screen.terminal import err, out
from holmes_cli.started_command import ANSWER_S, StartedCommand, started_command
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.hosts.allocation import NODES, allocation_hosts
from holmes_core.hosts.host_pattern import expand_pattern
from holmes_core.hosts.hosts_file import HostEntry, HostsFile
from holmes_core.records.inventory import Inventory
from holmes_core.records.record_file import read_file
from holmes_core.records.regular_file import open_regular
from holmes_core.remote.slurm.slurm_word import JOB, SlurmJobId, job_environment
from prober.anonymize import anonymize
from prober.asking.recording import HostRecording, make_recording_folder, read_recorded_hosts
from prober.nccl_logs.diagnose import SOUND, WHOLE_LOG, diagnose
from prober.nccl_logs.log_facts import LogFacts
from prober.nccl_logs.read_log import read_log
from prober.running.diagnose_run import RunDiagnosis, diagnose_run
from prober.running.watch_hosts import Watch, run_of, watch_hosts
from prober.running.watched_run import WatchedRun

STANDARD_INPUT = Path("-")
MAX_FILES = 16_384
MAX_BYTES = 64 * 2**30  # of one log
_HOW_TO_SEE_RANKS = (
    ". Ranks that run for less than the watch need a smaller `--seconds`; those without the command's environment, as "
    "by sudo or in a container, are seen by `holmes doctor` in another shell, without `--`"
)


def doctor_command(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="hosts.yaml or host names of a current run, or of the run that -- COMMAND starts; with --log its "
            "logs, where - is standard input."
        ),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="The files are NCCL's logs (NCCL_DEBUG=INFO) of the run.")] = False,
    slurm_job: Annotated[
        str | None, typer.Option("--slurm", metavar="JOBID", help="Watch the nodes of this Slurm job.")
    ] = None,
    seconds: Annotated[int, typer.Option("--seconds", min=2, max=3600, help="Watch the run for this long.")] = 60,
    record: Annotated[Path | None, typer.Option("--record", help="Keep every raw output in this folder.")] = None,
    replay_folder: Annotated[
        Path | None, typer.Option("--replay", help="Read the recording in this folder; contact no host.")
    ] = None,
    anonymized: Annotated[
        Path | None,
        typer.Option("--anonymize", help="Copy what --replay reads to this folder, without names and addresses."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON instead.")] = False,
) -> None:
    """Explain why a run that Holmes did not start is slow or fails, while it runs or from NCCL's logs."""
    ways = {"--slurm": slurm_job, "--record": record, "--replay": replay_folder, "--anonymize": anonymized}
    words: list[str] | None = context.obj
    _refuse_mixed(log, files or [], {name for name, value in ways.items() if value is not None}, words)
    if log:
        cause = _of_logs(files or [], as_json)
    elif anonymized is not None:
        if replay_folder is None:
            raise HolmesError("--anonymize copies a recording", "name it: `--replay DIR`, from `--record DIR`")
        anonymize(replay_folder, anonymized)
        out.print(f"{anonymized}: without names and addresses; read it before you share it", markup=False)
        return
    elif words is not None:
        hosts = hosts_named(str(files[0])) if files else _this_host()
        _of_command(words, Watch(hosts, seconds, os.environ), record, as_json)
        return
    else:
        run = run_of(_recorded(files or [], slurm_job, seconds, record, replay_folder), _probed())
        cause = _show(diagnose_run(run), run, as_json)
    if cause != SOUND:
        raise typer.Exit(ANSWER_IS_NO)


def _refuse_mixed(log: bool, files: list[Path], ways: set[str], words: list[str] | None) -> None:
    """Raise HolmesError for options that exclude one another: some would be ignored without a word."""
    if log and ways:
        raise HolmesError(f"--log only reads files, not with {', '.join(sorted(ways))}", "leave one of them out")
    given = [*map(str, files), *sorted(ways - {"--anonymize", "--replay"})]
    if "--anonymize" in ways and given:
        hint = "record first, then `holmes doctor --replay DIR --anonymize COPY`"
        raise HolmesError(f"--anonymize copies a recording, and cannot be combined with {', '.join(given[:3])}", hint)
    if words is None:
        return
    if mixed := sorted((ways - {"--record"}) | ({"--log"} if log else set())):
        hint = "leave one of them out; a file whose name begins with - is `./-NAME`"
        raise HolmesError(f"{mixed[0]} starts no command, but one is given after --", hint)
    if not words or len(files) > 1:
        hint = "`holmes doctor hosts.yaml -- torchrun ... train.py`; without hosts.yaml it watches this host"
        raise HolmesError(f"{len(files)} hosts files and {len(words)} words after --", hint)


def _recorded(
    files: list[Path], slurm_job: str | None, seconds: int, record: Path | None, replay_folder: Path | None
) -> dict[str, HostRecording]:
    """Return the answers of hosts, or of a recording."""
    if sum((bool(files), slurm_job is not None, replay_folder is not None)) != 1 or len(files) > 1:
        hint = f"run it with {WHOLE_LOG}, then `holmes doctor --log FILE...`; or watch it: `holmes doctor hosts.yaml`"
        raise HolmesError("holmes doctor needs a run's NCCL logs, or its hosts to watch", hint)
    if replay_folder is not None:
        return read_recorded_hosts(replay_folder)
    if slurm_job is None:
        watch = Watch(hosts_named(str(files[0])), seconds, os.environ)
    else:
        environ = job_environment(SlurmJobId(slurm_job), os.environ)
        every, named = allocation_hosts(environ), expand_pattern(environ[NODES])
        hosts = every.model_copy(update={"hosts": tuple(host for host in every.hosts if host.name in named)})
        watch = Watch(hosts, seconds, environ, environ[JOB])
    with err.status(f"watching {len(watch.hosts.hosts)} hosts for {seconds} s") as status:
        return watch_hosts(watch, lambda name, state: status.update(f"{name}: {state}"), record)


def _probed() -> Inventory | None:
    """Return the inventory of this folder, if a probe wrote one."""
    with suppress(HolmesError):  # helpful, but not required
        if usual_inventory().is_file():
            inventory = read_file(Inventory, usual_inventory())
            return inventory if inventory.sketch is None else None
    return None


def _this_host() -> HostsFile:
    try:
        return HostsFile(hosts=(HostEntry(name=platform.node()),), transport="local")
    except ValidationError:  # no name that Holmes takes
        return HostsFile(hosts=(HostEntry(name="localhost"),), transport="local")


def _show(watched: RunDiagnosis, run: WatchedRun, as_json: bool) -> str | None:
    (print_watched if as_json else show_watched)(watched, run)
    return watched.cause


def _of_command(words: list[str], watch: Watch, record: Path | None, as_json: bool) -> None:
    """Start the command, watch it, print the diagnosis, and exit once it has ended: with 1 or its own exit code."""
    if record is not None:
        make_recording_folder(record)
    with started_command(words, to_stderr=as_json) as command:
        watch = replace(watch, started=command.as_watched(), gives_up=command.has_long_ended)
        recorded = watch_hosts(watch, lambda *_: None, record)
        run = run_of(recorded, _probed())
        if all(host.seconds < watch.seconds - 1 for host in run.answered):  # the ranks have ended
            command.wait(ANSWER_S)
        cause = _show_command(command, run, as_json)
        if command.exit_code is None:
            out.file.flush()
            err.print("the command still runs; Ctrl-C ends it", markup=False)
            err.print(f"the command ended with exit code {command.wait()}", markup=False)
        code = command.wait()
    is_no = cause not in (None, SOUND) and not command.has_hung_up
    raise typer.Exit(ANSWER_IS_NO if is_no else code)


def _show_command(command: StartedCommand, run: WatchedRun, as_json: bool) -> str | None:
    """Print the diagnosis of the command's run, or of NCCL's log if the command ended too soon or failed."""
    watched, code = diagnose_run(run), command.exit_code
    ended = f"the command ended with exit code {code} after {command.seconds:.0f} s"
    failed = code not in (None, 0) and not command.was_interrupted and watched.cause == SOUND
    if failed or (code is not None and not run.ranks):
        facts = LogFacts()
        for file in sorted(command.logs.glob("*"))[:MAX_FILES]:  # none where the command has cleared its folder
            _read(file, facts)
        logged = diagnose(facts)
        if logged.cause not in (None, SOUND) and not logged.is_open:
            err.print(ended, markup=False)
            (print_record if as_json else show_diagnosis)(logged, facts)
            return logged.cause
        until = "nothing wrong was found until then" if run.ranks else "no rank of it was seen twice"
        needed = "read what it printed last" + ("" if run.ranks else _HOW_TO_SEE_RANKS)
        watched = replace(watched, cause=None, says=f"{ended}, and {until}", needed=needed)
    note = f"The command still runs, {command.seconds:.0f} s so far"
    if code is not None:
        note = f"{ended[0].upper()}{ended[1:]}"
    return _show(replace(watched, notes=(*watched.notes, note)), run, as_json)


def _of_logs(files: list[Path], as_json: bool) -> str | None:
    """Print the diagnosis of NCCL's logs, and return its cause."""
    if not files:
        hint = f"run it with {WHOLE_LOG}, then `holmes doctor --log FILE...`"
        raise HolmesError("holmes doctor --log needs at least one NCCL log", hint)
    facts = LogFacts()
    if len(files) > MAX_FILES:
        raise HolmesError(
            f"{len(files)} logs are more than {MAX_FILES:,}", "pass the logs of some hosts, or join them with `cat`"
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
