"""The ways a launch can end, each with what brings it about on a bed and what must be seen: tests and a benchmark."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from launcher.journal.run_folder import read_run
from launcher.prepare.prepare import SILENCE_LIMIT_S
from tests.eventually import eventually
from tests.testbed.bed import Bed
from tests.testbed.own_disks import hosts_that_remember
from tests.testbed.rank_processes import RANK, agent_pids, our_pids, rank_pids, torchrun_pids
from tests.testbed.rehearsal import Site, only_run, said_until, standard_library_corpus
from tests.testbed.slurm_on_bed import SlurmOnBed

STEPPING = "step 3/"
CLEAN_WITHIN_S = 10.0
ENDS_WITHIN_S = 120.0
SMALL_HOME = "b1"
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
FACTORY = """
    import os, socket, time

    def faulty(layers, config):
        if socket.gethostname() == "b1":
            fault()
        time.sleep(60)  # another host is to fail

    def fault():
"""
RAISES = '        raise ValueError("on purpose")\n'
EATS_MEMORY = """
        open("{folder}/pid.part", "w").write(str(os.getpid()))
        os.rename("{folder}/pid.part", "{folder}/pid")
        while not os.path.exists("{folder}/limited"):
            time.sleep(0.1)
        eaten = [os.urandom(1 << 20) for _ in range(1000)]
"""


SCRIPT = """
    import socket, sys, time
    import torch, torch.distributed as dist

    dist.init_process_group("gloo")
    for step in range(1, int(sys.argv[1]) + 1):
        total = torch.ones(1)
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"step {step} loss {total.item()}", flush=True)
        if step == 5 and socket.gethostname() == sys.argv[2]:
            raise ValueError("on purpose")
        time.sleep(0.1)
    dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Way:
    """How launches reach the hosts of a bed: by SSH, or by steps of a job of `slurm`, where all have one `home`."""

    site: Site
    options: tuple[str, ...] = ()
    slurm: SlurmOnBed | None = None
    home: Path | None = None

    @property
    def bed(self) -> Bed:
        """The hosts."""
        assert self.site.bed is not None
        return self.site.bed

    def cache(self, host: str) -> Path:
        """Where Holmes puts what it needs on a host."""
        return (self.home or self.bed.host(host).home) / ".cache/holmes"

    def guest_pids(self, host: str) -> set[int]:
        """Every process on a host but those that are there without a launch."""
        daemons = set() if self.slurm is None else self.slurm.pids
        return set(self.bed.guest_pids(host)) - daemons

    def files(self) -> list[str]:
        """What launches put on hosts, but for the parcels that are kept."""
        temporary = {self.home / "tmp"} if self.home else {host.folder / "tmp" for host in self.bed.hosts}
        folders = temporary | {self.cache(host.name) / "runs" for host in self.bed.hosts}
        return sorted(str(path) for folder in folders for path in folder.glob("*"))


@dataclass
class Running:
    """A launch under way: its process, and the control group for a rank whose memory is limited."""

    way: Way
    folder: Path
    process: subprocess.Popen[str]
    memory_group: Path | None

    @property
    def bed(self) -> Bed:
        """The hosts it runs on."""
        return self.way.bed


@dataclass(frozen=True)
class Ending:
    """`bring_about` is called once the launch prints a line that starts with `when`; None if the job ends itself.

    `begins` is False where the launch may end before the run has begun, so that there may be no record of it.
    """

    name: str
    exit_code: int
    says: str
    bring_about: Callable[[Running], None] | None = None
    undo: Callable[[Running], None] | None = None
    job: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    when: str = STEPPING
    faulty: str | None = None
    limit_s: float = CLEAN_WITHIN_S
    begins: bool = True


def _signal_rank(run: Running, number: signal.Signals) -> None:
    (rank,) = rank_pids(run.bed, "b1")
    os.kill(rank, number)


def _kill_controller_then_rank(run: Running) -> None:
    """Agents learn of the rank's end, and of its peers', while they do not know yet that the controller is gone."""
    run.process.kill()
    _signal_rank(run, signal.SIGKILL)


def _kill_torchrun(run: Running) -> None:
    (torchrun,) = torchrun_pids(run.bed, "a2")
    os.kill(torchrun, signal.SIGKILL)


def _stop_agent(run: Running) -> None:
    _, agent = agent_pids(run.bed, "b2")
    os.kill(agent, signal.SIGSTOP)


def _kill_agent(run: Running) -> None:
    """The relay, which is the agent's parent, outlives it."""
    relay, agent = agent_pids(run.bed, "b2")
    assert f"PPid:\t{relay}\n" in Path(f"/proc/{agent}/status").read_text(encoding="utf-8")
    os.kill(agent, signal.SIGKILL)


def _ctrl_c(run: Running) -> None:
    run.process.send_signal(signal.SIGINT)


def _ctrl_c_twice(run: Running) -> None:
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    run.process.send_signal(signal.SIGINT)


def _stop_command(run: Running) -> None:
    command = run.way.site.command("stop", str(only_run(run.folder / "runs")))
    subprocess.run(command, check=True, capture_output=True, timeout=600)


def _kill_sshd(run: Running) -> None:
    """The listening sshd and its sessions, which are not told apart from what runs in them but by their name."""
    run.bed.stop_sshd("b2")
    for pid in run.bed.guest_pids("b2"):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").startswith("sshd"):
                os.kill(pid, signal.SIGKILL)


def _link_down(run: Running) -> None:
    run.bed.set_link("b2", "eno1", up=False)


def _link_up(run: Running) -> None:
    """A host without a link has ended what runs on it before."""
    try:
        assert eventually(lambda: not our_pids(run.bed, "b2"))
    finally:
        run.bed.set_link("b2", "eno1", up=True)


def _fill_home(run: Running) -> None:
    fill = ["sh", "-c", f"cat /dev/zero >{run.way.cache(SMALL_HOME)}/filler"]
    subprocess.run(run.bed.on_host_command(SMALL_HOME, fill), stderr=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def small_home(way: Way) -> Iterator[None]:
    """What Holmes writes on one host has 16 MiB."""
    bed, cache = way.bed, way.cache(SMALL_HOME)
    make = f"mkdir -p {cache} && mount -t tmpfs -o size=16m,mode=700 tmpfs {cache}"
    subprocess.run(bed.on_host_command(SMALL_HOME, ["sh", "-c", make]), check=True)
    try:
        yield
    finally:
        subprocess.run(bed.on_host_command(SMALL_HOME, ["umount", "--lazy", str(cache)]), check=True)


def _limit_memory(run: Running) -> None:
    """Put the rank into the control group from here; a host of the bed does not see those."""
    assert run.memory_group is not None
    while not (run.folder / "pid").exists():
        time.sleep(0.1)
    (run.memory_group / "cgroup.procs").write_text((run.folder / "pid").read_text(encoding="utf-8"), encoding="utf-8")
    (run.folder / "limited").touch()


ENDINGS = (
    Ending("normal end", 0, "", job={"steps": 5}),
    Ending("Ctrl-C", 130, "no rank is left running", _ctrl_c),
    Ending("Ctrl-C twice", 130, "no rank is left running", _ctrl_c_twice),
    Ending("holmes stop", 130, "no rank is left running", _stop_command),
    Ending(
        "rank killed",
        137,
        "error: host b1 (roce-1): rank 2 failed first: signal 9",
        lambda run: _signal_rank(run, signal.SIGKILL),
    ),
    Ending(
        "torchrun killed",
        137,
        "error: host a2",
        _kill_torchrun,
    ),
    Ending("agent killed", 1, "error: host b2", _kill_agent),
    Ending(
        "sshd killed",
        1,
        "error: host b2 (roce-1): the node failed first",
        _kill_sshd,
        lambda run: run.bed.start_sshd("b2"),
        limit_s=SILENCE_LIMIT_S + CLEAN_WITHIN_S,
    ),
    Ending(
        "agent stopped",
        1,
        "the node agent has been silent",
        _stop_agent,
        limit_s=SILENCE_LIMIT_S + CLEAN_WITHIN_S,
    ),
    Ending(
        "controller killed",
        -signal.SIGKILL,
        "",
        lambda run: run.process.kill(),
        limit_s=SILENCE_LIMIT_S + CLEAN_WITHIN_S,
    ),
    Ending(
        "controller killed, then a rank",
        -signal.SIGKILL,
        "",
        _kill_controller_then_rank,
        limit_s=SILENCE_LIMIT_S + CLEAN_WITHIN_S,
    ),
    Ending(
        "interface down",
        1,
        "the node agent has been silent",
        _link_down,
        _link_up,
        limit_s=SILENCE_LIMIT_S + CLEAN_WITHIN_S,
    ),
    Ending("disk full", 1, "No space left on device", options=("--force", "disk"), job={"steps": 5}),
    Ending(
        "home full",
        1,
        f"error: host {SMALL_HOME} (roce-1)",
        _fill_home,
        options=("--force", "disk"),
    ),
    Ending(
        "hung rank",
        1,
        "its process is stopped by a signal",
        lambda run: _signal_rank(run, signal.SIGSTOP),
        job={"timeout_s": 30},
    ),
    Ending("exception in user code", 1, "ValueError: on purpose", faulty=RAISES),
    Ending("out of memory", 137, "out-of-memory killer", _limit_memory, faulty=EATS_MEMORY, when="4 of 4 nodes: ranks"),
)


def endings_here() -> tuple[Ending, ...]:
    """Those that can be brought about on this machine: the last needs memory control groups of version 1."""
    return ENDINGS if (MEMORY_GROUPS / "memory.limit_in_bytes").exists() else ENDINGS[:-1]


def saving(ending: Ending, folder: Path, remembering: list[str]) -> Ending:
    """The same of a run that saves after every step; `remembering` gets the hosts that have some of it in memory."""

    def bring_about(run: Running) -> None:
        remembering.extend(hosts_that_remember(run.bed, only_run(run.folder / "runs").name))
        assert ending.bring_about is not None
        ending.bring_about(run)

    return replace(with_checkpoints(ending, folder, every_steps=1), bring_about=bring_about)


def trainer_endings() -> tuple[Ending, ...]:
    """Those in which a trainer's command may differ: its ranks, its hangs, and its own exception."""
    wanted = (
        "Ctrl-C",
        "rank killed",
        "torchrun killed",
        "controller killed",
        "hung rank",
    )
    others = [ending for ending in ENDINGS if ending.name in wanted]
    own = (Ending("exception in the script", 1, "ValueError: on purpose", job={"steps": 6}),)
    return (*own, *others)


def of_trainer(ending: Ending, folder: Path) -> Ending:
    """The same of a script that knows nothing of Holmes, on all four hosts, named like a rank by its last word."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    last = ending.job.get("steps", 100000)
    words = ["python", str(script), str(last), "b1" if "exception" in ending.name else "", RANK]
    trainer = {"engine": "torch", "command": words}
    parallel = {"tp": 1, "pp": 1, "dp": 4}
    return replace(ending, job={**ending.job, "data": None, "parallel": parallel, "trainer": trainer})


def with_checkpoints(ending: Ending, folder: Path, every_steps: int) -> Ending:
    """The same of a run that saves below `folder`."""
    checkpoint = {"path": str(folder / "saved"), "every_steps": every_steps}
    return replace(ending, job={**ending.job, "checkpoint": checkpoint})


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 200 KiB, mounted before the bed is made so that its hosts see it."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def memory_group(name: str, limit_bytes: int) -> Iterator[Path]:
    """A control group whose processes get no more memory than that."""
    group = MEMORY_GROUPS / name
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes), encoding="utf-8")
        yield group
    finally:
        group.rmdir()


def ending_job(ending: Ending, folder: Path, full_disk: Path) -> dict[str, Any]:
    """The job whose launch ends so."""
    job: dict[str, Any] = {
        "model": {"num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 32},
        "data": standard_library_corpus(),
        "global_batch_size": 12,
        "steps": 100000,
        "device": "cpu",
        "compute": {"flops_per_s": 1e10},
        "parallel": {"pp": 2, "dp": 2, "micro_batch_size": 1},
        "timeout_s": 120,
        **ending.job,
    }
    if ending.name == "disk full":
        job["checkpoint"] = {"path": str(full_disk / folder.name), "every_steps": 2}
    if ending.faulty is not None:
        (folder / "faulty.py").write_text(
            textwrap.dedent(FACTORY + ending.faulty.format(folder=folder)), encoding="utf-8"
        )
        job["model"]["factory"] = f"{folder}/faulty.py:faulty"
    return job


def end_so(way: Way, ending: Ending, folder: Path, inventory: Path, full_disk: Path) -> list[str]:
    """Launch, bring the end about, and look at what came of it: what is not as it should be, in words."""
    group = memory_group(f"holmes-{way.bed.suffix}", 150 << 20) if "memory" in ending.name else contextlib.nullcontext()
    home = small_home(way) if ending.name == "home full" else contextlib.nullcontext()
    with group as limited, home:
        plan = _plan(way.site, ending_job(ending, folder, full_disk), inventory)
        before = {host.name: way.guest_pids(host.name) for host in way.bed.hosts}
        command = way.site.command("launch", str(plan), "--runs", str(folder / "runs"), *way.options, *ending.options)
        stacks = {**os.environ, "PYTHONFAULTHANDLER": "1"}  # of its threads, should it have to be aborted
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=stacks)
        run = Running(way, folder, process, limited)
        said = ""
        begun_s: float | None = None
        try:
            if ending.bring_about is not None:
                said = said_until(process, ending.when)
                begun_s = time.monotonic()
                ending.bring_about(run)
            said += process.communicate(timeout=ENDS_WITHIN_S)[1]
            wrong = _wrong(ending, process.returncode, said)
            wrong += _wrong_record(ending, way.site, folder / "runs") if ending.begins else []
        except EOFError as error:
            wrong = [str(error)]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            said += process.communicate(timeout=ENDS_WITHIN_S)[1]
            wrong = [f"it did not end within {ENDS_WITHIN_S:g} s; it said:\n{said[-8000:]}"]
        finally:
            away_s = 0.0
            if ending.undo is not None and begun_s is not None:
                ending.undo(run)
                away_s = time.monotonic() - begun_s
            process.kill()
        # TCP tells sshd's sessions that a link is back after a pause as long as it was away.
        return wrong + _left(way, before, ending.limit_s + away_s)


def _plan(site: Site, job: dict[str, Any], inventory: Path) -> Path:
    """The plan of a job, which jobs that say the same share."""
    text = yaml.safe_dump(job)
    folder = site.folder / f"plan-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    plan = folder / "plan.json"
    if plan.exists():
        return plan
    folder.mkdir(exist_ok=True)
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    command = site.command("plan", str(folder / "job.yaml"), "-i", str(inventory), "-o", str(plan))
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return plan


def _wrong(ending: Ending, exit_code: int, said: str) -> list[str]:
    wrong = []
    if exit_code != ending.exit_code:
        wrong.append(f"exit code {exit_code}, not {ending.exit_code}; it said:\n{said[-3000:]}")
    if ending.says not in said:
        wrong.append(f"it did not say {ending.says!r} but:\n{said[-3000:]}")
    return wrong


def _wrong_record(ending: Ending, site: Site, runs: Path) -> list[str]:
    """What run.json, and `holmes status` by it, say that is not so. A controller that is killed writes nothing more."""
    run = read_run(only_run(runs))
    killed = ending.exit_code < 0
    state = "running" if killed else {0: "done", 130: "stopped"}.get(ending.exit_code, "failed")
    wrong = []
    if (run.state, run.exit_code) != (state, None if killed else ending.exit_code):
        wrong.append(f"run.json says {run.state}, exit code {run.exit_code}")
    status = subprocess.run(site.command("status", str(only_run(runs))), capture_output=True, text=True, check=False)
    says = "its controller was killed" if killed else ending.says
    if status.returncode != 0 or says not in status.stdout + status.stderr:
        wrong.append(f"`holmes status` does not say {says!r} but:\n{status.stdout}{status.stderr}")
    return wrong


def _left(way: Way, before: Mapping[str, set[int]], within_s: float) -> list[str]:
    """Processes and files of the run that are there when the time is up."""
    since_s = time.monotonic()
    while True:
        found = ((host.name, way.guest_pids(host.name) - before[host.name]) for host in way.bed.hosts)
        left = [f"process {pid} on {host}" for host, pids in found for pid in sorted(pids)] + way.files()
        if not left:
            return []
        if time.monotonic() - since_s > within_s:
            return [f"left after {within_s:.0f} s: {', '.join(left)}"]
        time.sleep(0.1)
