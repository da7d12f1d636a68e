"""Slurm on the bed: slurmctld beside the controller and one slurmd a host, a partition a cluster and one of all.

Each host has a name and networks of its own, so that no multiple daemons on one machine are needed. Seen on Slurm
22.05.8 of Debian 12, which is up in under a second.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from tests.testbed.bed import Bed
from tests.testbed.bed_layout import CONTROLLER_ADDRESS

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged")
SYSTEM_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
START_TIMEOUT_S = 60.0
PR_SET_PDEATHSIG = 1
# cgroups are not seen in namespaces; config_overrides and cons_tres let a node have more CPUs than the machine.
CONF = """\
ClusterName=bed
SlurmctldHost={controller}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1
ReturnToService=1
SlurmdTimeout=30
KillWait=5
MinJobAge=600
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
"""


def missing_for_slurm() -> tuple[str, ...]:
    """The programs that Slurm on the bed needs and that are not installed."""
    return tuple(name for name in PROGRAMS if shutil.which(name, path=SYSTEM_PATH) is None)


class SlurmOnBed:
    """A context: Slurm's daemons over the hosts of `bed`, ended by the processes it started.

    `topology` is the text of its topology.conf; without one it knows no switches.
    """

    def __init__(self, bed: Bed, topology: str | None = None) -> None:
        self._bed, self._topology = bed, topology
        self.folder = Path(tempfile.mkdtemp(prefix="holmes-slurm-"))
        self._environ = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": SYSTEM_PATH}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> SlurmOnBed:
        try:
            self._start_all()
        except BaseException:
            self._take_down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take_down()

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """What `command`, such as sbatch, prints when typed on the controller. Raises CalledProcessError."""
        line = self._bed.controller_command(command)
        return subprocess.run(line, env=self._environ, cwd=cwd, stdout=subprocess.PIPE, text=True, check=True).stdout

    def submit(self, script: Path) -> str:
        """Submit a batch script from its folder; its output goes to SCRIPT.out. Returns the job's id."""
        return self.run("sbatch", "--parsable", f"--output={script}.out", str(script), cwd=script.parent).strip()

    def allocate(self) -> dict[str, str]:
        """A job of all hosts without a script; the environment of a shell in it."""
        self.run("salloc", "--no-shell", f"--nodes={len(self._bed.hosts)}", "--exclusive", "--quiet")
        job, nodes = self.running_job()
        return {**self._environ, "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": nodes}

    def running_job(self) -> tuple[str, str]:
        """The id and the nodes of the one job that runs."""
        job, nodes = self.run("squeue", "--noheader", "--states=running", "--format=%i %N").split()
        return job, nodes

    def release(self) -> None:
        """End every job; return when all hosts are free."""
        self.run("scancel", "--user=root")
        self._wait_idle()

    def steps_on(self, host: str) -> list[str]:
        """The steps of jobs that are on `host`, as `scancel` names them, the first that was started first."""
        lines = self.run("squeue", "--steps", "--noheader", f"--nodelist={host}", "--format=%i %N").splitlines()
        return sorted((line.split()[0] for line in lines), key=lambda step: int(step.rpartition(".")[2]))

    @property
    def pids(self) -> set[int]:
        """Its daemons."""
        return {process.pid for process in self._processes.values()}

    def start_slurmd(self, host: str) -> None:
        """Start the daemon of `host`."""
        conf = f"{self.folder}/slurm.conf"
        words = ["env", f"SLURM_CONF={conf}", "slurmd", "-D", "-f", conf, "-N", host]
        self._start(f"slurmd-{host}", self._bed.on_host_command(host, words))

    def kill_slurmd(self, host: str) -> None:
        """Kill the daemon of `host`; steps under way on it go on."""
        self._processes[f"slurmd-{host}"].kill()
        self._processes[f"slurmd-{host}"].wait()

    def wait_for_end(self, job: str, timeout_s: float = 180.0) -> None:
        """Return when the job has left the queue."""
        self.wait(lambda: not self.run("squeue", "--noheader", f"--jobs={job}").strip(), f"job {job}", timeout_s)

    def _start_all(self) -> None:
        self._write_files()
        conf, munge = f"{self.folder}/slurm.conf", self.folder / "munge"
        socket_file = self.folder / "munge.socket"
        files = [f"--{name}-file={munge}/{name}" for name in ("key", "pid", "log", "seed")]
        self._start("munged", ["munged", "--foreground", f"--socket={socket_file}", *files])
        self.wait(socket_file.exists, "munged")
        self._start("slurmctld", self._bed.controller_command(["slurmctld", "-D", "-c", "-f", conf]))
        for host in self._bed.hosts:
            self.start_slurmd(host.name)
        self._wait_idle()

    def _wait_idle(self) -> None:
        idle = ("sinfo", "--noheader", "--partition=all", "--states=idle", "--format=%D")
        self.wait(lambda: self._said(idle) == str(len(self._bed.hosts)), "slurmd")

    def _said(self, command: Sequence[str]) -> str:
        try:
            return self.run(*command).strip()
        except subprocess.CalledProcessError:
            return ""

    def _write_files(self) -> None:
        self.folder.chmod(0o755)
        for name in ("munge", "state"):
            (self.folder / name).mkdir(mode=0o700)
        key = self.folder / "munge" / "key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(1024))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="utf-8")
        conf = CONF.format(folder=self.folder, controller=socket.gethostname(), address=CONTROLLER_ADDRESS)
        for host in self._bed.hosts:
            conf += f"NodeName={host.name} NodeAddr={host.slow_address} CPUs=4\n"
        for cluster in sorted({host.cluster for host in self._bed.hosts}):
            names = ",".join(host.name for host in self._bed.hosts if host.cluster == cluster)
            conf += f"PartitionName={cluster} Nodes={names} State=UP\n"
        conf += "PartitionName=all Nodes=ALL Default=YES State=UP\n"
        conf += "PartitionName=urgent Nodes=ALL PriorityTier=2 State=UP\n"  # its jobs preempt all others
        if self._topology is not None:
            conf += "TopologyPlugin=topology/tree\n"
            (self.folder / "topology.conf").write_text(self._topology, encoding="utf-8")
        (self.folder / "slurm.conf").write_text(conf, encoding="utf-8")

    def _start(self, name: str, command: Sequence[str]) -> None:
        """A daemon that ends when this process does, whatever becomes of it."""
        with open(self.folder / f"{name}.log", "wb") as log:
            self._processes[name] = subprocess.Popen(
                command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
            )

    def wait(self, done: Callable[[], bool], name: str, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                logs = "\n".join(f"{log.name}: {log.read_text()[-500:]}" for log in sorted(self.folder.glob("*.log")))
                raise AssertionError(f"{name}: not after {timeout_s:g} s:\n{logs}")
            time.sleep(0.1)

    def _take_down(self) -> None:
        if len(self._processes) > 1:
            self._said(("scancel", "--user=root"))
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(START_TIMEOUT_S)
            except subprocess.TimeoutExpired:  # slurmd may wait for a controller that has ended
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
