"""Several runs in one log, one after the other, as launchers write them that restart a job: the last one counts."""

from __future__ import annotations

import itertools

from prober.nccl_logs.log_facts import LogFacts, ProcessKey


def leave_out_earlier_runs(facts: LogFacts, file: str) -> None:
    """Leave out what a file has of runs before its last one, and note the line at which that begins.

    A later run has other processes on a host, whose largest communicator is another one of the same size, begun after
    the last line of the earlier processes. Logs of one run that are joined share that communicator.
    """
    worlds: dict[ProcessKey, tuple[int, str]] = {}
    for name, communicator in facts.communicators.items():
        for key in communicator.ranks.values():
            worlds[key] = max(worlds.get(key, (0, "")), (communicator.num_ranks, name))
    runs: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}  # first and last line by communicator
    for key, (size, name) in worlds.items():
        process = facts.processes.get(key)
        if process is not None and process.file == file and process.pid:
            lines = runs.setdefault((process.host, size), {})
            begin, end = lines.get(name, (process.begin, process.end))
            lines[name] = min(begin, process.begin), max(end, process.end)
    begins = []
    for lines in runs.values():
        ordered = sorted(lines.values())
        if len(ordered) > 1 and all(one[1] < two[0] for one, two in itertools.pairwise(ordered)):
            begins.append(ordered[-1][0])
    begin = min(begins, default=0)
    ends = (line for sign in ("ended", "fatal", "peer-closed") for line in facts.signs.get(sign, ()))
    if not any(line.evidence.file == file and line.evidence.line < begin for line in ends):
        return
    facts.restarts[file] = begin
    _leave_out(facts, file, begin)


def _leave_out(facts: LogFacts, file: str, begin: int) -> None:
    for key, process in list(facts.processes.items()):
        if process.file == file and process.end < begin and process.pid:
            del facts.processes[key]
    for sign, sightings in list(facts.signs.items()):
        facts.signs[sign] = [each for each in sightings if each.evidence.file != file or each.evidence.line >= begin]
        if not facts.signs[sign]:
            del facts.signs[sign]
    kept = {name for process in facts.processes.values() for name in process.communicators.values()}
    facts.communicators = {name: each for name, each in facts.communicators.items() if name in kept}
    facts.pairs = {pair: ends for pair, ends in facts.pairs.items() if not pair[0] or pair[0] in kept}
    later = {version for version, line in facts.versions.items() if line.file != file or line.line >= begin}
    if later:
        facts.versions = {version: line for version, line in facts.versions.items() if version in later}
