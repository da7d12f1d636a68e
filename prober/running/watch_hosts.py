"""Watch the training on all hosts at once, or read a recording of that."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from holmes_core.hosts.hosts_file import HostEntry, HostsFile
from holmes_core.remote.connect import connect
from holmes_core.remote.slurm.slurm_step import connect_by_slurm
from prober.asking.recording import HostNotes, HostRecording
from prober.probe import Progress, ask_all, ask_by_script, failure_of
from prober.running.watch_script import watch_script
from prober.running.watched_host import WatchedHost, read_watched
from prober.running.watched_run import WatchedRun, watched_run

ANSWER_S = 90.0  # after the watch: tools that hang are ended after 20 s each


def watch_hosts(
    hosts_file: HostsFile, seconds: int, progress: Progress, record: Path | None, environ: Mapping[str, str]
) -> dict[str, HostRecording]:
    """Return what each host answered. A host that fails has a finding in its notes, and stops no other.

    `environ` names the Slurm job whose steps reach hosts with `transport: slurm`.

    Raises:
        HolmesError: `record` holds a recording, or cannot be written.
    """
    return ask_all(hosts_file, functools.partial(_watch, hosts_file, seconds, environ), progress, record)


def run_of(recorded: Mapping[str, HostRecording], slurm_job: str | None = None) -> WatchedRun:
    """Return the run in what hosts answered."""
    return watched_run([_host(name, recording, slurm_job) for name, recording in recorded.items()])


def _host(name: str, recording: HostRecording, slurm_job: str | None) -> WatchedHost:
    failure = recording.notes.failure
    if failure is not None:
        return WatchedHost(name, failure=failure.evidence)
    return read_watched(name, recording.outputs, slurm_job)


def _watch(
    hosts_file: HostsFile, seconds: int, environ: Mapping[str, str], entry: HostEntry, position: int
) -> HostRecording:
    access = hosts_file.access(entry)
    notes = HostNotes(position=position, access=access)
    by_slurm = functools.partial(connect_by_slurm, environ=environ) if access.transport == "slurm" else connect
    try:
        outputs, *_ = ask_by_script(
            entry.name, access, functools.partial(watch_script, seconds), seconds + ANSWER_S, by_slurm
        )
    except Exception as error:  # one host never costs the others
        return HostRecording((), notes.model_copy(update={"failure": failure_of(entry.name, error)}))
    return HostRecording(outputs, notes)
