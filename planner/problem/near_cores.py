"""The CPUs of each rank: the ones of its GPU's NUMA node, divided among the ranks there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from holmes_core.records.inventory import Host
from holmes_core.records.plan import PlanRank

_CPU_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")  # `0-31,64-95`
_Range = tuple[int, int]  # the first CPU and the last
MAX_CPUS = 8192  # the largest NR_CPUS of Linux on x86-64


def near_cores(host: Host, gpus: Sequence[int | None]) -> tuple[str | None, ...]:
    """Return, by local rank, a list such as `0-7,64-71` that no other rank of the host shares, for ranks on these GPUs.

    None for all ranks of a host if one rank's CPUs are not known, lists overlap, or there are fewer CPUs than ranks.
    """
    near = {gpu.index: gpu.cpus or "" for gpu in host.gpus}
    lists = [near.get(gpu, "") if gpu is not None else "" for gpu in gpus]
    nothing = (None,) * len(lists)
    if not all(_CPU_LIST.fullmatch(each) for each in lists):
        return nothing
    counts, taken = Counter(lists), Counter[str]()
    ranges = {each: cpu_ranges(each) for each in counts}
    if any(last < first or last > MAX_CPUS for held in ranges.values() for first, last in held):
        return nothing
    if first_shared(ranges.values()) is not None:
        return nothing
    shares = {each: _shares(held, counts[each]) for each, held in ranges.items()}
    if not all(map(all, shares.values())):
        return nothing
    cores = []
    for each in lists:
        cores.append(shares[each][taken[each]])
        taken[each] += 1
    return tuple(cores)


def with_cores(ranks: Sequence[PlanRank], hosts: Sequence[Host]) -> tuple[PlanRank, ...]:
    """Return the ranks with their CPUs, if those are known."""
    of_host: dict[str, list[int | None]] = {}
    for rank in ranks:
        of_host.setdefault(rank.host, []).append(rank.gpu)
    cores = {host.name: near_cores(host, of_host[host.name]) for host in hosts if host.name in of_host}
    return tuple(rank.model_copy(update={"cpus": cores[rank.host][rank.local_rank]}) for rank in ranks)


def first_shared(lists: Iterable[Sequence[_Range]]) -> int | None:
    """Return the lowest CPU that is in two of the lists, or in one twice; None if there is none."""
    ordered = sorted(each for held in lists for each in held)
    return next((after[0] for before, after in pairwise(ordered) if after[0] <= before[1]), None)


def cpu_ranges(cpus: str) -> tuple[_Range, ...]:
    """Return the first and last CPU of each range of a list such as `0-31,64-95`."""
    bounds = (part.partition("-") for part in cpus.split(","))
    return tuple((int(first), int(last or first)) for first, _, last in bounds)


def _shares(ranges: Sequence[_Range], parts: int) -> list[str]:
    """Return `parts` lists, each with an equal part of every range: threads of a core are a range apart, or neighbours.

    If a range is too short, all CPUs are divided in order. Lists are empty if there are too few CPUs.
    """
    if min(last - first + 1 for first, last in ranges) < parts:
        cpus = [cpu for first, last in ranges for cpu in range(first, last + 1)]
        return [_written([(cpu, cpu) for cpu in _part(cpus, part, parts)]) for part in range(parts)]
    cut = [[_part(range(first, last + 1), part, parts) for first, last in ranges] for part in range(parts)]
    return [_written([(piece[0], piece[-1]) for piece in pieces]) for pieces in cut]


def _part(cpus: Sequence[int], part: int, parts: int) -> Sequence[int]:
    return cpus[len(cpus) * part // parts : len(cpus) * (part + 1) // parts]


def _written(ranges: Sequence[_Range]) -> str:
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
