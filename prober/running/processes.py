"""Training processes of a host from two readings of /proc: the ranks, their helpers, and other busy processes.

A rank is the first process of a family with the same RANK that is not a shell or another wrapper. The processes that it
starts are helpers, mostly data loaders. Source: proc(5).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

TICKS_PER_S = 100.0  # USER_HZ of every Linux that runs on x86-64 and Arm; source: proc(5), sysconf(3)
MAX_RANKS = 1_048_576
MAX_PIDS = 65_536
MAX_GENERATIONS = 16  # of parents searched for an ancestor
MARK = "HOLMES_WATCHED"  # a variable with a unique value for each command that was started to be watched
_FACT = re.compile(r"/proc/(\d{1,10})/(\w+):(.*)$")
_STAT = re.compile(r"(\d{1,10}) \((.{0,64})\) ([A-Za-z]) (\d{1,10})((?: -?\d{1,20}){18,50})\s*$")
_CPU, _START = (9, 10), 17  # places of utime, stime and starttime after the parent's number
_WRAPPERS = re.compile(
    r"(?:ba|da|z|k|fi)?sh|timeout|numactl|taskset|time|env|nice|ionice|stdbuf|setsid|tee|srun|slurmstepd|mpirun|mpiexec|"
    r"orted|prted|hydra_\w+|tini|dumb-init|catatonit|singularity|apptainer|starter\w*|conda|mamba|micromamba|uv|uvx|"
    r"poetry|pixi|pdm|hatch|nsys|ncu|strace|ltrace|perf|py-spy|gdb|ddtrace-run|opentelemetry-\w+"
)
_RANK, _SIZE, _LOCAL = (
    ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
)


class ProcessStat(NamedTuple):
    """A line of /proc/PID/stat. `cpu_s` counts all threads, and `started_s` is the time since the host's start."""

    pid: int
    name: str
    state: str
    parent: int
    cpu_s: float
    started_s: float


class JobKey(NamedTuple):
    """The key of one training: the port and name of its rendezvous, its number of ranks, and its Slurm job.

    `place` is the address of the rendezvous, or the host, if trainings have all else in common.
    """

    port: str
    run: str
    size: int | None
    slurm_job: str = ""
    place: str = ""


@dataclass(frozen=True)
class Helper:
    """A process that a rank started, with its CPU seconds per second."""

    pid: int
    name: str
    cpu_share: float


@dataclass(frozen=True)
class WatchedRank:
    """A watched rank. `states` and `waits` describe its main thread in each snapshot.

    Shares are CPU seconds per second, of all threads or of the main thread. Bytes count the disk, or are None if the
    kernel does not show them.
    """

    host: str
    number: int
    pid: int
    name: str
    job: JobKey
    variables: Mapping[str, str]
    words: tuple[str, ...]
    states: tuple[str, ...]
    waits: tuple[str, ...]
    cpu_share: float
    main_share: float
    started_s: float
    read_bytes: int | None
    written_bytes: int | None
    helpers: tuple[Helper, ...]
    foreign_network: bool = False

    @property
    def local_size(self) -> int | None:
        """The number of ranks that its launcher started on this host, if a variable has it."""
        return _count(self.variables.get("LOCAL_WORLD_SIZE"))

    @property
    def local_rank(self) -> int | None:
        """Its number among the ranks of this host."""
        return next((count for name in _LOCAL if (count := _count(self.variables.get(name))) is not None), None)


def facts_by_pid(texts: Iterable[str], file: str) -> dict[int, list[str]]:
    """Return the values of lines `/proc/PID/FILE:VALUE`, in order."""
    facts: dict[int, list[str]] = {}
    for text in texts:
        for line in text.splitlines():
            match = _FACT.match(line)
            if match and match[2] == file and (len(facts) < MAX_PIDS or int(match[1]) in facts):
                facts.setdefault(int(match[1]), []).append(match[3])
    return facts


def parse_stats(text: str) -> dict[int, ProcessStat]:
    """Return the processes of `cat /proc/*/stat` by pid."""
    stats: dict[int, ProcessStat] = {}
    for line in text.splitlines():
        if (match := _STAT.match(line)) and len(stats) < MAX_PIDS:
            numbers = match[5].split()
            cpu_s = sum(int(numbers[at]) for at in _CPU) / TICKS_PER_S
            stat = ProcessStat(
                int(match[1]), match[2], match[3], int(match[4]), cpu_s, int(numbers[_START]) / TICKS_PER_S
            )
            stats[stat.pid] = stat
    return stats


def cpu_shares(first: Mapping[int, ProcessStat], last: Mapping[int, ProcessStat], seconds: float) -> dict[int, float]:
    """Return the CPU seconds per second of each process that existed at both times or began between them."""
    shares = {}
    for pid, stat in last.items():
        before = first.get(pid)
        is_same = before is not None and before.started_s == stat.started_s
        used_s = stat.cpu_s - before.cpu_s if before is not None and is_same else stat.cpu_s
        shares[pid] = max(0.0, used_s) / seconds
    return shares


def is_descendant(pid: int, ancestors: Collection[int], stats: Mapping[int, ProcessStat]) -> bool:
    """Return True if the process is one of `ancestors`, or one of them started it, even indirectly."""
    for _ in range(MAX_GENERATIONS):
        if pid in ancestors:
            return True
        if pid not in stats:
            return False
        pid = stats[pid].parent
    return False


def variables_by_pid(facts: Mapping[int, Sequence[str]], slurm_job: str | None) -> dict[int, dict[str, str]]:
    """Return the variables of each process of the Slurm job, or of all processes without one."""
    found = {}
    for pid, lines in facts.items():
        variables = dict(line.split("=", 1) for line in lines if "=" in line)
        if slurm_job is None or variables.get("SLURM_JOB_ID") == slurm_job:
            found[pid] = variables
    return found


def families(variables: Mapping[int, Mapping[str, str]]) -> Iterator[tuple[JobKey, int, list[int]]]:
    """Yield each rank of each job with the processes that have its variables.

    If any process of a Slurm job has RANK, its processes with only a number of Slurm or MPI are launchers.
    """
    with_rank = {found.get("SLURM_JOB_ID") for found in variables.values() if "RANK" in found}
    ranked = {
        pid: found for pid, found in variables.items() if "RANK" in found or found.get("SLURM_JOB_ID") not in with_rank
    }
    members: dict[tuple[JobKey, int], list[int]] = {}
    for pid, found in ranked.items():
        rank = next((_count(found[name]) for name in _RANK if name in found), None)
        size = next((_count(found[name]) for name in _SIZE if name in found), None)
        if rank is not None:
            run = found.get("TORCHELASTIC_RUN_ID", "")
            port = "" if run and _has_gate(found) else found.get("MASTER_PORT", "")
            key = JobKey(port, run, size, found.get("SLURM_JOB_ID", ""))
            members.setdefault((key, rank), []).append(pid)
    for (key, rank), pids in members.items():
        yield key, rank, pids


def _has_gate(variables: Mapping[str, str]) -> bool:
    """Return True if ranks of several hosts use a loopback address, where each host has a gate at its own port."""
    sizes = {variables.get(name) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    return variables.get("MASTER_ADDR", "").startswith("127.") and len(sizes) == 2


def split_family(pids: Sequence[int], stats: Mapping[int, ProcessStat]) -> tuple[ProcessStat, list[ProcessStat]] | None:
    """Return the process that is the rank, and its helpers, or None if all have ended."""
    alive = [stats[pid] for pid in sorted(pids) if pid in stats and stats[pid].state not in "ZX"]
    working = {each.pid: each for each in alive if not _WRAPPERS.fullmatch(each.name)}
    first = next((each for each in working.values() if each.parent not in working), next(iter(alive), None))
    return None if first is None else (first, [each for each in working.values() if each is not first])


def _count(text: str | None) -> int | None:
    """Return a number of ranks, or None for any other text."""
    return int(text) if text and re.fullmatch(r"[0-9]{1,7}", text) and int(text) <= MAX_RANKS else None
