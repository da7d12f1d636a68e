"""Slurm's state of the job this process runs in, and of its nodes: queried once a part of it has ended.

Source: Slurm 22.05, squeue(1), "JOB STATE CODES", and sinfo(1), "NODE STATE CODES"; seen on Slurm 22.05.8.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holmes_core.errors import HolmesError, HostError
from holmes_core.hosts.allocation import COMPONENTS, NODES
from holmes_core.remote.local_shell import LocalConnection
from holmes_core.units import format_names

JOB = "SLURM_JOB_ID"
ANSWER_S = 5.0  # for slurmctld, which may never answer
LOOK_AGAIN_S = 0.5
_COMPLETING = "COMPLETING"  # hides the job's final state until all its processes have ended
_UNDER_WAY = {"CONFIGURING", "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
_ENDS: Mapping[str, str] = {
    _COMPLETING: "is being ended",
    "CANCELLED": "was cancelled (`scancel`)",
    "NODE_FAIL": "was ended because a node failed",
    "OUT_OF_MEMORY": "used more memory than it has",
    "PENDING": "was put back into the queue",
    "PREEMPTED": "was preempted",
    "TIMEOUT": "came to its time limit",
}
_GONE = {"DOWN", "FAIL", "FAILING", "POWERED_DOWN", "POWERING_DOWN", "REBOOT"}


@dataclass(frozen=True)
class SlurmWord:
    """`job_end`: the job's end as a sentence, None while it runs. `down`: by host, the reason why its node is down."""

    job_end: str | None = None
    down: Mapping[str, str] = field(default_factory=dict)


def slurm_word(nodes: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> SlurmWord:
    """Query Slurm for this job and for hosts, given with its names of them. Answers that come too late are left out.

    One query for the job, repeated while the job is ending, and one for all nodes.
    """
    job = environ.get(JOB)
    if job is None:
        return SlurmWord()
    end, down = _job_end(job, environ), _down(nodes.values(), environ)
    return SlurmWord(end, {host: down[name] for host, name in nodes.items() if name in down})


@dataclass(frozen=True)
class SlurmJobId:
    """A job as squeue names it: `123`, the task `123_4` of an array, the component `123+1` of a heterogeneous job."""

    text: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9]{1,10}(?:[_+][0-9]{1,10})?", self.text):
            raise HolmesError(
                f"--slurm {self.text}: no id of a job", "give one as `squeue --me` does: 123, 123_4, 123+1"
            )

    @property
    def base(self) -> str:
        """The number of the array or the heterogeneous job, or its own."""
        return re.split("[_+]", self.text)[0]


def job_environment(job: SlurmJobId, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that a process inside that job would have, with the variables that steps need.

    Steps find a component by the job's own number. The list of nodes is that of the named part alone.

    Raises:
        HolmesError: Slurm knows no nodes of it, or several tasks of it run.
    """
    lines = _answer(("squeue", f"--jobs={job.text}", "--format=%i|%A|%N"), environ)
    rows = [words for line in lines if len(words := line.strip().split("|")) == 3 and words[2]]
    chosen = [words for words in rows if job.text in (words[0], job.base)]
    if not chosen:
        raise HolmesError(f"--slurm {job.text}: Slurm names no nodes of it", "`squeue --me` lists the jobs that run")
    parts = {int(name.partition("+")[2]): nodes for name, _, nodes in rows if re.fullmatch(r"[0-9]+\+[0-9]{1,4}", name)}
    if len(chosen) > 1 and not parts:
        names = format_names([words[0] for words in chosen], 4)
        raise HolmesError(f"--slurm {job.text}: {len(chosen)} tasks of it run: {names}", "name one of them")
    outside = {name: value for name, value in environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
    inside = {JOB: job.base if parts else chosen[0][1], NODES: ",".join(nodes for *_, nodes in chosen)}
    if parts:
        inside[COMPONENTS] = str(1 + max(parts))
    return {**outside, **inside, **{f"{NODES}_HET_GROUP_{part}": nodes for part, nodes in parts.items()}}


def _job_end(job: str, environ: Mapping[str, str]) -> str | None:
    """Return the job's end, of a heterogeneous job that of the first component that has ended."""
    deadline = time.monotonic() + ANSWER_S
    while True:
        states = _answer(("squeue", f"--jobs={job}", "--states=all", "--format=%T"), environ)
        ended = [state for state in states if state not in _UNDER_WAY]
        if _COMPLETING not in ended or time.monotonic() > deadline:
            break
        time.sleep(LOOK_AGAIN_S)
    if not ended:
        return None
    return f"Slurm job {job} {_ENDS.get(ended[0], f'is over: {ended[0]}')}"


def _down(nodes: Iterable[str], environ: Mapping[str, str]) -> Mapping[str, str]:
    asked = ("sinfo", "--Node", f"--nodes={','.join(nodes)}", "--format=%N|%T|%E")
    lines = (line.split("|", maxsplit=2) for line in _answer(asked, environ))
    return {
        name: f"Slurm has node {name} {state.upper()}: {reason}"
        for name, state, reason in lines
        if state.rstrip("*~#!%$@^-").upper() in _GONE
    }


def _answer(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the lines of a Slurm command; none where it fails, takes too long or prints too much."""
    command = shlex.join((words[0], "--noheader", *words[1:]))
    try:
        done = LocalConnection(words[0], environ=environ).run(command, b"", ANSWER_S)
    except HostError:
        return []
    return done.stdout.decode(errors="replace").split("\n")[:-1]
