"""The ways a launch can end inside a Slurm job: those of a launch by SSH, and those that are Slurm's own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.testbed.launch_ends import Ending, Running, Way, endings_here
from tests.testbed.rehearsal import Site
from tests.testbed.slurm_on_bed import SlurmOnBed

OF_THE_JOB = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "PATH")
FAULTY_NODE = "b2"


def _slurm(run: Running) -> SlurmOnBed:
    assert run.way.slurm is not None
    return run.way.slurm


def _scancel(run: Running) -> None:
    _slurm(run).run("scancel", "--user=root")


def _scancel_step(run: Running) -> None:
    (agent,) = _slurm(run).steps_on(FAULTY_NODE)
    _slurm(run).run("scancel", agent)


def _set_down(run: Running) -> None:
    _slurm(run).run("scontrol", "update", f"nodename={FAULTY_NODE}", "state=down", "reason=bad power supply")


def _resume(run: Running) -> None:
    _slurm(run).run("scontrol", "update", f"nodename={FAULTY_NODE}", "state=resume")


def _end_time(run: Running) -> None:
    """Slurm looks every 30 s for jobs whose time is over."""
    slurm = _slurm(run)
    slurm.run("scontrol", "update", f"jobid={slurm.running_job()[0]}", "endtime=now")


def _preempt(run: Running) -> None:
    _slurm(run).run(
        "sbatch", "--partition=urgent", "--exclusive", f"--nodelist={FAULTY_NODE}", "--output=/dev/null", "--wrap=true"
    )


def _kill_slurmd(run: Running) -> None:
    _slurm(run).kill_slurmd(FAULTY_NODE)


def _start_slurmd(run: Running) -> None:
    _slurm(run).start_slurmd(FAULTY_NODE)


OWN_ENDINGS = (
    Ending("slurmd killed", 0, "", _kill_slurmd, _start_slurmd, job={"steps": 40}),
    Ending("slurmd missed", 1, "Slurm has node b2 DOWN*: Not responding", _kill_slurmd, _start_slurmd),
    Ending("job cancelled", 1, "was cancelled (`scancel`)", _scancel),
    Ending("time over", 1, "came to its time limit", _end_time),
    Ending("job preempted", 1, "was preempted", _preempt),
    Ending("step cancelled", 1, "its step of the Slurm job was ", _scancel_step),  # slurmstepd's word may be lost
    Ending("node down", 1, "Slurm has node b2 DOWN: bad power supply", _set_down, _resume),
)


def slurm_endings_here() -> tuple[Ending, ...]:
    """Those that can be brought about on this machine; without SSH its server is nothing to kill."""
    return (*(ending for ending in endings_here() if ending.name != "sshd killed"), *OWN_ENDINGS)


def probed_by_ssh(site: Site, slurm: SlurmOnBed) -> Path:
    """The inventory of the site's hosts; from then on none of them runs an SSH server."""
    path = site.folder / "inventory.json"
    with inside_job(site, slurm) as way:
        command = way.site.command("probe", str(site.hosts_yaml), "-o", str(path))
        subprocess.run(command, check=True, capture_output=True)
        for host in way.bed.hosts:
            way.bed.stop_sshd(host.name)
    return path


@contextlib.contextmanager
def inside_job(site: Site, slurm: SlurmOnBed) -> Iterator[Way]:
    """The way to all hosts inside a new job, which is over at the end; one home for all of them, as most sites have."""
    environ = slurm.allocate()
    home = site.folder / "home"
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    words = [f"HOME={home}", f"TMPDIR={home / 'tmp'}", *(f"{name}={environ[name]}" for name in OF_THE_JOB)]
    try:
        inside = replace(site, prefix=(*site.prefix, "env", *words))
        yield Way(inside, ("--via", "slurm"), slurm, home)
    finally:
        slurm.release()
