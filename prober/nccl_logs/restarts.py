"""Several runs in one log, as launchers that restart a job write them: the last one counts."""

from __future__ import annotations

from prober.nccl_logs.log_facts import PROCESS_BYTES, LogFacts, NcclProcess, ProcessKey, Sighting
from prober.nccl_logs.nccl_lines import Evidence

Stretch = tuple[str, int, int]  # a file, the first line of a process, and the first of the one that follows it


def leave_out_earlier_runs(facts: LogFacts, file: str) -> None:
    """Leave out the runs of a file that a later one follows, and note the line at which the last one begins.

    A later run takes a GPU again: its process begins after the last line of another of that host and GPU, whose run had
    ended or failed, and shares no communicator with it. Processes on other GPUs are of the same run or a live replica.
    """
    runs = _runs(facts)
    followed = _followed(facts, file, runs)
    earlier = {runs[old] for old in followed if old in runs}
    dropped = followed.keys() | {key for key, run in runs.items() if run in earlier}
    begins = [facts.processes[new].begin for new in followed.values() if new not in dropped]
    if not begins:  # two runs that take GPUs of each other are alive
        return
    facts.restarts[file] = min(begins)
    lines = [(file, facts.processes[old].begin, facts.processes[new].begin) for old, new in followed.items()]
    for key in dropped:
        del facts.processes[key]
    _leave_out(facts, dropped, lines)


def restarted(facts: LogFacts, process: NcclProcess, file: str, line: int) -> NcclProcess:
    """Return the process of a line with which one begins: a new one if another of this number had ended or failed.

    Containers number processes alike. Variables are kept, which NCCL logs before that line.
    """
    key, stretch = (process.host, process.pid, ""), (file, process.begin, line)
    begun = bool(process.pid) and process.file == file and _ended(facts, {key}, stretch)
    if not begun or not facts.has_room(size_bytes=PROCESS_BYTES):
        return process
    if process.begin >= facts.restarts.get(file, 0):  # else a process of the same run began anew before
        facts.restarts[file] = line
    for name in process.communicators.values():
        communicator = facts.communicators[name]
        communicator.ranks = {rank: owner for rank, owner in communicator.ranks.items() if owner != key}
    facts.processes[key] = NcclProcess(*key[:2], file, line, line, settings=process.settings)
    _leave_out(facts, {key}, [stretch])
    return facts.processes[key]


def _runs(facts: LogFacts) -> dict[ProcessKey, str]:
    """Return a run name for each process with communicators; processes that share some, even indirectly, get one."""
    parents: dict[str, str] = {}

    def root(name: str) -> str:
        while parents.setdefault(name, name) != name:
            parents[name] = name = parents[parents[name]]
        return name

    names = {key: list(process.communicators.values()) for key, process in facts.processes.items()}
    for own in names.values():
        for name in own:
            parents[root(name)] = root(own[0])
    return {key: root(own[0]) for key, own in names.items() if own}


def _followed(facts: LogFacts, file: str, runs: dict[ProcessKey, str]) -> dict[ProcessKey, ProcessKey]:
    """Return processes of a file with the later one that has their GPU.

    GPUs are compared by bus. A process that ended before NCCL logged it is compared by the number in brackets, unless
    the host numbers several GPUs alike, as where each process sees one.
    """
    own = [(key, each) for key, each in facts.processes.items() if each.file == file and each.pid]
    buses: dict[tuple[str, int], set[str]] = {}
    members: dict[str, set[ProcessKey]] = {}
    for key, process in own:
        buses.setdefault((process.host, process.gpu), set()).update({process.bus} - {""})
        members.setdefault(runs.get(key, ""), set()).add(key)
    last: dict[tuple[str, int | str], list[ProcessKey]] = {}  # by host and bus, or number
    followed: dict[ProcessKey, ProcessKey] = {}
    for key, process in sorted(own, key=lambda item: item[1].begin):
        if not process.bus:  # it has ended early, if its first lines are here
            last.setdefault((process.host, process.gpu), []).extend([key] if process.interfaces else ())
            continue
        alike = last.pop((process.host, process.gpu), []) if len(buses[process.host, process.gpu]) == 1 else []
        for old in (*alike, *last.get((process.host, process.bus), ())):
            other, run = facts.processes[old], runs.get(old, "")
            same = all(process.interfaces.get(name, own) == own for name, own in other.interfaces.items())
            ended = _ended(facts, members[run], (file, other.begin, process.begin))
            if same and ended and other.end < process.begin and run != runs.get(key):
                followed[old] = key
        last[process.host, process.bus] = [key]
    return followed


def _ended(facts: LogFacts, processes: set[ProcessKey], stretch: Stretch) -> bool:
    """Return True if lines of a stretch say that one of these processes ended or failed."""
    ends = (each for sign in ("ended", "fatal", "peer-closed") for each in facts.signs.get(sign, ()))
    own = (each.evidence for each in ends if not each.pid or (each.host, each.pid, "") in processes)
    return any(_is_within(line, [stretch]) for line in own)


def _is_within(line: Evidence, stretches: list[Stretch]) -> bool:
    return any(line.file == file and begin <= line.line < end for file, begin, end in stretches)


def _leave_out(facts: LogFacts, dropped: set[ProcessKey], lines: list[Stretch]) -> None:
    """Drop the lines of processes that ended, and lines of no process up to the next run."""

    def is_kept(each: Sighting) -> bool:
        return (each.host, each.pid, "") not in dropped if each.pid else not _is_within(each.evidence, lines)

    facts.signs = {sign: kept for sign, all_ in facts.signs.items() if (kept := [*filter(is_kept, all_)])}
    names = {name for process in facts.processes.values() for name in process.communicators.values()}
    facts.communicators = {name: each for name, each in facts.communicators.items() if name in names}
    facts.pairs = {pair: ends for pair, ends in facts.pairs.items() if not pair[0] or pair[0] in names}
    used = {process.version for process in facts.processes.values()}
    later = {each: line for each, line in facts.versions.items() if each in used or not _is_within(line, lines)}
    facts.versions = later or facts.versions
