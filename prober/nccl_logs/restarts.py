"""Several runs in one log, from launchers that restart a job. The last run counts."""

from __future__ import annotations

from prober.fabrics.union_find import UnionFind
from prober.nccl_logs.log_facts import PROCESS_BYTES, LogFacts, NcclProcess, ProcessKey, Sighting
from prober.nccl_logs.nccl_lines import Evidence

Stretch = tuple[str, int, int]  # a file, and the first lines of a process and of its successor


def leave_out_earlier_runs(facts: LogFacts, file: str) -> None:
    """Drop all runs of a file but the last, and note the first line of the last one.

    A later run uses a GPU again. Its process begins after the last line of another process on that host and GPU, whose
    run had ended or failed, and shares no communicator with it. Processes on other GPUs belong to the same run or to
    a live replica.
    """
    runs = _runs(facts)
    followed = _followed(facts, file, runs)
    earlier = {runs[old] for old in followed if old in runs}
    dropped = followed.keys() | {key for key, run in runs.items() if run in earlier}
    begins = [facts.processes[new].begin for new in followed.values() if new not in dropped]
    if not begins:  # runs that use each other's GPUs are both alive
        return
    facts.restarts[file] = min(begins)
    lines = [(file, facts.processes[old].begin, facts.processes[new].begin) for old, new in followed.items()]
    for key in dropped:
        del facts.processes[key]
    _leave_out(facts, dropped, lines)


def restarted(facts: LogFacts, process: NcclProcess, file: str, line: int) -> NcclProcess:
    """Return the process of a first line: a new one if an earlier process with this pid had ended or failed.

    Processes in different containers may have one pid. Variables are kept, because NCCL logs them before that line.
    """
    key, stretch = (process.host, process.pid, ""), (file, process.begin, line)
    begun = bool(process.pid) and process.file == file and _ended(facts, {key}, stretch)
    if not begun or not facts.has_room(size_bytes=PROCESS_BYTES):
        return process
    if process.begin >= facts.restarts.get(file, 0):  # else a process of the same run has begun before
        facts.restarts[file] = line
    for name in process.communicators.values():
        communicator = facts.communicators[name]
        communicator.ranks = {rank: owner for rank, owner in communicator.ranks.items() if owner != key}
    facts.processes[key] = NcclProcess(*key[:2], file, line, line, settings=process.settings)
    _leave_out(facts, {key}, [stretch])
    return facts.processes[key]


def _runs(facts: LogFacts) -> dict[ProcessKey, str]:
    """Return a run name for each process with communicators. Processes that share any, even indirectly, have one."""
    names = {key: list(process.communicators.values()) for key, process in facts.processes.items()}
    runs: UnionFind[str] = UnionFind(name for own in names.values() for name in own)
    for own in names.values():
        runs.join(own)
    return {key: runs.root(own[0]) for key, own in names.items() if own}


def _followed(facts: LogFacts, file: str, runs: dict[ProcessKey, str]) -> dict[ProcessKey, ProcessKey]:
    """Return the later process on the same GPU for each process of a file that has one.

    GPUs are compared by bus. A process that ended before NCCL logged the bus is compared by the number in brackets,
    unless several GPUs of the host have that number because each process sees only one.
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
        if not process.bus:  # it ended early, if its first lines are here
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
    """Return True if a line of the stretch shows that one of these processes ended or failed."""
    ends = (each for sign in ("ended", "fatal", "peer-closed") for each in facts.signs.get(sign, ()))
    own = (each.evidence for each in ends if not each.pid or (each.host, each.pid, "") in processes)
    return any(_is_within(line, [stretch]) for line in own)


def _is_within(line: Evidence, stretches: list[Stretch]) -> bool:
    return any(line.file == file and begin <= line.line < end for file, begin, end in stretches)


def _leave_out(facts: LogFacts, dropped: set[ProcessKey], lines: list[Stretch]) -> None:
    """Drop the facts of ended processes, and lines without a process up to the next run."""

    def is_kept(each: Sighting) -> bool:
        return (each.host, each.pid, "") not in dropped if each.pid else not _is_within(each.evidence, lines)

    facts.signs = {sign: kept for sign, all_ in facts.signs.items() if (kept := [*filter(is_kept, all_)])}
    names = {name for process in facts.processes.values() for name in process.communicators.values()}
    facts.communicators = {name: each for name, each in facts.communicators.items() if name in names}
    facts.pairs = {pair: ends for pair, ends in facts.pairs.items() if not pair[0] or pair[0] in names}
    used = {process.version for process in facts.processes.values()}
    later = {each: line for each, line in facts.versions.items() if each in used or not _is_within(line, lines)}
    facts.versions = later or facts.versions
