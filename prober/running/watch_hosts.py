"""Watching the training on all hosts at once, or reading a recording of a watch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holmes_core.hosts.hosts_file import HostEntry, HostsFile
from holmes_core.records.inventory import Inventory
from holmes_core.remote.connect import connect
from holmes_core.remote.slurm.slurm_step import connect_by_slurm
from prober.asking.recording import HostNotes, HostRecording
from prober.probe import Progress, ask_all, ask_by_script, failure_of
from prober.running.watch_script import MAX_WAIT_S, WARM_UP_FACTOR, MarkedCommand, watch_script
from prober.running.watched_host import WatchedHost, read_watched
from prober.running.watched_run import WatchedRun, watched_run

ANSWER_S = 90.0  # after the watch: tools that hang are ended after 20 s each


@dataclass(frozen=True)
class Watch:
    """Hosts to be watched for some seconds, by steps of a Slurm job or from the start of a command there.

    `environ` names the job. Once `gives_up`, hosts without an answer are failures.
    """

    hosts: HostsFile
    seconds: int
    environ: Mapping[str, str]
    slurm_job: str | None = None
    started: MarkedCommand | None = None
    gives_up: Callable[[], bool] = lambda: False


def watch_hosts(watch: Watch, progress: Progress, record: Path | None) -> dict[str, HostRecording]:
    """Return the answers of the hosts. A host that fails has a finding in its notes, and does not stop others.

    Raises:
        HolmesError: `record` holds a recording, or cannot be written.
    """
    return ask_all(watch.hosts, functools.partial(_watch, watch), progress, record, watch.gives_up)


def run_of(recorded: Mapping[str, HostRecording], probed: Inventory | None = None) -> WatchedRun:
    """Return the run in the answers of hosts, with the inventory of a probe."""
    started = next((each.notes.started for each in recorded.values() if each.notes.started), None)
    hosts = [
        WatchedHost(name, failure=each.notes.failure.evidence)
        if each.notes.failure is not None
        else read_watched(name, each.outputs, each.notes.slurm_job)
        for name, each in recorded.items()
    ]
    return watched_run(hosts, started, probed)


def _watch(watch: Watch, entry: HostEntry, position: int) -> HostRecording:
    access, started, timeout_s = watch.hosts.access(entry), watch.started, watch.seconds + ANSWER_S
    notes = HostNotes(position=position, access=access, slurm_job=watch.slurm_job)
    if started is not None:
        notes = notes.model_copy(update={"started": started.mark})
        timeout_s += MAX_WAIT_S + WARM_UP_FACTOR * watch.seconds
        if access.transport != "local":
            started = started._replace(pid=None)
    by_slurm = functools.partial(connect_by_slurm, environ=watch.environ)
    connecting = by_slurm if access.transport == "slurm" else connect
    try:
        script = functools.partial(watch_script, watch.seconds, started)
        outputs, *_ = ask_by_script(entry.name, access, script, timeout_s, connecting)
    except Exception as error:  # one host must not stop the others
        return HostRecording((), notes.model_copy(update={"failure": failure_of(entry.name, error)}))
    return HostRecording(outputs, notes)
