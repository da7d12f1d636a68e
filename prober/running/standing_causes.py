"""Causes that stop a run: a rank that is stopped, missing or hanging, and a GPU that reports a fault."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

from holmes_core.units import format_names
from prober.running import running_texts as causes
from prober.running.processes import WatchedRank
from prober.running.running_texts import FAILURE, RunFinding
from prober.running.watched_run import WatchedRun

IDLE_SHARE = 0.02  # of a core: heartbeats of the rendezvous and of watchdogs take less
SPINNING = 0.9  # of the time that a GPU computes
IDLE_BYTES_PER_S = 64_000  # heartbeats on a rank's connections
MAX_NAMED = 6
_STOPPED = {"T", "t"}


def standing_causes(run: WatchedRun) -> Iterator[RunFinding]:
    """Yield causes that stop the run, the most certain first."""
    yield from _stopped(run)
    yield from _missing(run)
    yield from _gpu_faults(run)
    yield from _hanging(run)


def is_idle(run: WatchedRun, rank: WatchedRank) -> bool:
    """Return True if the rank neither computes, nor sends, nor reads or writes a disk."""
    seconds = run.by_name[rank.host].seconds
    moved = (run.bytes_of(rank) or 0) > IDLE_BYTES_PER_S * seconds
    disk = (rank.read_bytes or 0) + (rank.written_bytes or 0) > IDLE_BYTES_PER_S * seconds
    computes = rank.cpu_share + sum(each.cpu_share for each in rank.helpers) > IDLE_SHARE
    return not (moved or disk or computes or (run.utilisation_of(rank) or 0) > 0.1 or "D" in rank.states)


def named(rank: WatchedRank) -> str:
    """Return the rank with its host and process."""
    return f"rank {rank.number} on {rank.host} (PID {rank.pid})"


def wait_of(rank: WatchedRank) -> str | None:
    """Return the place in the kernel where its main thread waited in most snapshots, or None if none is shown."""
    known = [wait for wait in rank.waits if wait not in ("0", "")]
    return Counter(known).most_common(1)[0][0] if known else None


def _stopped(run: WatchedRun) -> Iterator[RunFinding]:
    stopped = [rank for rank in run.ranks if rank.states and set(rank.states) <= _STOPPED]
    if stopped:
        lines = [f"{named(rank)}: state {rank.states[-1]} in all {len(rank.states)} snapshots" for rank in stopped]
        first = stopped[0]
        held = "t" in first.states
        remedy = "Detach the debugger. " if held else f"`kill -CONT {first.pid}` on {first.host}. "
        detail = format_names([named(rank) for rank in stopped], MAX_NAMED)
        yield causes.STOPPED.finding(detail, *lines, cost=FAILURE, remedy=remedy)


def _missing(run: WatchedRun) -> Iterator[RunFinding]:
    """Yield hosts that lack ranks, unless the others go on: ranks may end when their part is done."""
    missing = list(run.missing_local())
    if not missing or moves(run) or not all(is_idle(run, rank) or _spins(run, rank) for rank in run.ranks):
        return
    for host, numbers, size in missing:
        lost = format_names([str(number) for number in numbers], MAX_NAMED)
        line = f"{host}: {size - len(numbers)} of the {size} ranks that its launcher started are there"
        yield causes.MISSING.finding(f"local rank {lost} of {host}", line, cost=FAILURE)


def _gpu_faults(run: WatchedRun) -> Iterator[RunFinding]:
    for host in run.answered:
        ranks = run.of_host(host.name)
        began_s = min((rank.started_s for rank in ranks), default=None)
        if began_s is None:
            continue
        used, pids = host.gpus_of(ranks), {pid for rank in ranks for pid in (rank.pid, *(h.pid for h in rank.helpers))}
        lines = [
            f"{host.name}: Xid {xid.number} at {xid.pci_address}"
            for xid in host.xids
            if xid.at_s >= began_s and (xid.pid in pids or len(used) == len(host.gpus))
        ]
        lines += [
            f"{host.name}: GPU {gpu.index} counts {gpu.ecc_errors[-1] - gpu.ecc_errors[0]} new uncorrected ECC errors"
            for gpu in used
            if gpu.ecc_errors and gpu.ecc_errors[-1] > gpu.ecc_errors[0]
        ]
        if lines:
            detail = f"on {host.name}, since the run began"
            yield causes.GPU_FAULT.finding(detail, *dict.fromkeys(lines), cost=FAILURE)


def _hanging(run: WatchedRun) -> Iterator[RunFinding]:
    """Yield the few ranks that idle while the GPUs of others spin, or if all idle, those that wait elsewhere.

    A waiting collective of NCCL keeps its GPU busy. A rank with a busy CPU may compute results that others wait for.
    """
    idle: list[WatchedRank] = []
    others: list[WatchedRank] = []
    for rank in run.ranks:
        (idle if is_idle(run, rank) else others).append(rank)
    if not idle or moves(run):
        return
    if len(idle) < len(others) and all(_spins(run, rank) for rank in others):
        hanging = idle
    elif not others:
        hanging = _at_another_place(idle)
    else:
        return
    if hanging:
        lines = [
            f"{named(rank)}: no CPU, no bytes, waits in {wait_of(rank) or 'a place not shown'}" for rank in hanging
        ]
        lines += [f"{named(rank)}: waits in {wait_of(rank)}" for rank in idle[: 2 * MAX_NAMED] if rank not in hanging]
        lines += [f"{named(rank)}: CPU {rank.cpu_share:.0%}, no bytes" for rank in others]
        detail = format_names([named(rank) for rank in hanging], MAX_NAMED)
        yield causes.HANGING.finding(detail, *lines, cost=FAILURE)


def _at_another_place(idle: list[WatchedRank]) -> list[WatchedRank]:
    """Return the ranks that wait elsewhere than most. Empty if there is no majority or a place is not shown."""
    places = Counter(map(wait_of, idle))
    (place, count), *_ = places.most_common(1)
    if place is None or None in places or 2 * count <= len(idle):
        return []
    return [rank for rank in idle if wait_of(rank) != place]


def _spins(run: WatchedRun, rank: WatchedRank) -> bool:
    return (run.utilisation_of(rank) or 0) >= SPINNING


def moves(run: WatchedRun) -> bool:
    """Return True if the run's connections or RDMA ports carry more than heartbeats."""
    rates = [(run.bytes_of(rank) or 0) / run.by_name[rank.host].seconds for rank in run.ranks]
    return statistics.fmean(rates or [0.0]) > IDLE_BYTES_PER_S or run.rdma_bytes_per_s > 10 * IDLE_BYTES_PER_S
