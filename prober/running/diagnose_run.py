"""The verdict on a watched run: the cause that stops it or costs most, the reason for no verdict, or a sound run."""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from holmes_core.units import format_names
from prober.nccl_logs.diagnose import SOUND, WHOLE_LOG, diagnose
from prober.nccl_logs.log_facts import LogFacts
from prober.nccl_logs.read_log import read_log
from prober.running.audited_causes import audited_causes
from prober.running.costly_causes import IDLE_GPU, STARTING_S, costly_causes
from prober.running.rank_order import unmeasured_order
from prober.running.running_texts import RunFinding
from prober.running.standing_causes import is_idle, moves, named, standing_causes, wait_of
from prober.running.watched_run import WatchedRun

MAX_NAMED = 8
_LOG_COST = 0.4  # of a cause in NCCL's log of a running job, which shows no share of the time


@dataclass(frozen=True)
class RunDiagnosis:
    """The verdict. `cause` is an id, `none` for a sound run, or None. Then `needed` says how to get a verdict."""

    cause: str | None
    says: str
    remedy: str
    evidence: tuple[str, ...]
    also: tuple[RunFinding, ...]
    needed: str
    notes: tuple[str, ...]


def diagnose_run(run: WatchedRun) -> RunDiagnosis:
    """Return the diagnosis from the watch."""
    notes = tuple(_notes(run))
    if not run.ranks:
        says, needed = _no_ranks(run)
        return RunDiagnosis(None, says, "", _failures(run), (), needed, notes)
    found = [*standing_causes(run), *costly_causes(run), *_from_logs(run), *audited_causes(run)]
    if found:
        verdict, *also = sorted(found, key=lambda finding: -finding.cost)
        return RunDiagnosis(verdict.cause, verdict.says, verdict.remedy, verdict.evidence, tuple(also), "", notes)
    if reason := _no_verdict(run):
        says, needed, lines = reason
        return RunDiagnosis(None, says, "", lines, (), needed, notes)
    return RunDiagnosis(SOUND, "nothing wrong found", "", (_progress(run),), (), "", notes)


def _from_logs(run: WatchedRun) -> Iterator[RunFinding]:
    """Yield the cause in NCCL's logs, if a rank's log is a readable file."""
    facts = LogFacts()
    for host in run.answered:
        if "NCCL" in host.nccl_log:
            read_log(io.BytesIO(host.nccl_log.encode()), f"{host.name}, NCCL's log", facts)
    if facts.files:
        found = diagnose(facts)
        if found.cause not in (None, SOUND) and not found.is_open:
            lines = tuple(f"{file}: {text}" for file, _, text in found.evidence)
            yield RunFinding(str(found.cause), found.says, found.remedy, lines, _LOG_COST)


def _no_ranks(run: WatchedRun) -> tuple[str, str]:
    if not run.answered:
        return (
            "No host could be watched",
            "see to the hosts, or name others: `holmes probe` says what is wrong with them",
        )
    holders = sum(len(host.holders) for host in run.answered)
    if holders:
        says = f"{holders} processes compute on GPUs, and the environment of none can be read with RANK in it"
        return says, "run this as the user of the training, or as root"
    says = "No process of this user has RANK, SLURM_PROCID or OMPI_COMM_WORLD_RANK in its environment"
    return says, "start it while the training runs, on its hosts, as its user or as root"


def _failures(run: WatchedRun) -> tuple[str, ...]:
    return tuple(f"{host.name}: {host.failure}" for host in run.hosts if host.failure)[:MAX_NAMED]


def _no_verdict(run: WatchedRun) -> tuple[str, str, tuple[str, ...]] | None:
    """Return the reason for no verdict, what would allow one, and the lines. Return None for a sound run."""
    idle = [rank for rank in run.ranks if is_idle(run, rank)]
    if len(idle) == len(run.ranks):
        lines = tuple(f"{named(rank)}: waits in {wait_of(rank) or 'a place not shown'}" for rank in run.ranks)
        needed = (
            f"`py-spy dump --pid {run.ranks[0].pid}` on {run.ranks[0].host}, and so for each rank: one waits elsewhere"
        )
        says = "The run stands still: no rank computes, sends or reads, and none stands out"
        return says, needed, lines[:4]
    if absent := run.unwatched():
        size = run.job.size if run.job else None
        says = f"{absent} of the {size} ranks run on no host that was watched, and nothing is wrong with the others"
        failed = [host.name for host in run.hosts if host.failure]
        addresses = sorted({path.receiver for path in run.paths if not path.is_watched and path.leaves_host})
        where = f"the hosts at {format_names(addresses, MAX_NAMED)}" if addresses else "their hosts"
        needed = f"see to {format_names(failed, MAX_NAMED)}" if failed else f"add {where}"
        return says, needed, _failures(run)
    if idle and not moves(run):
        names = format_names([named(rank) for rank in idle], MAX_NAMED)
        needed = (
            f"watch it for longer (`--seconds 300`); `py-spy dump --pid {idle[0].pid}` on {idle[0].host} says where"
        )
        return f"Ranks compute and nothing travels; these wait for them, or hang: {names}", needed, (_progress(run),)
    uses = [use for rank in run.ranks if (use := run.utilisation_of(rank)) is not None]
    is_new = all(run.by_name[rank.host].began_s - rank.started_s < STARTING_S for rank in run.ranks)
    if is_new and len(run.ranks) > 1 and not moves(run) and max(uses, default=0.0) < IDLE_GPU:
        return "The ranks start: nothing travels between them yet", "watch it again, or for longer", (_progress(run),)
    if uses and statistics.fmean(uses) < IDLE_GPU:
        line = f"GPUs compute {statistics.fmean(uses):.0%} of the time"
        needed = f"run it with {WHOLE_LOG} to a file, and profile some steps (torch.profiler, `py-spy top`)"
        return "GPUs idle, and no reading says why", needed, (line,)
    return None


def _progress(run: WatchedRun) -> str:
    cores = sum(rank.cpu_share for rank in run.ranks)
    uses = [use for rank in run.ranks if (use := run.utilisation_of(rank)) is not None]
    gpus = f", GPUs compute {statistics.fmean(uses):.0%} of the time" if uses else ""
    return f"{len(run.ranks)} ranks on {len({rank.host for rank in run.ranks})} hosts, {cores:.1f} cores busy{gpus}"


def _notes(run: WatchedRun) -> Iterator[str]:
    """Yield notes on hosts and facts that the answer lacks, with the right that would help."""
    yield from (f"{line}; it was left out" for line in _failures(run))
    if run.other_ranks:
        yield f"{run.other_ranks} ranks of other trainings run on the hosts and were left out"
    empty = [host.name for host in run.answered if not run.of_host(host.name) and not host.is_root]
    if run.ranks and empty:
        yield f"no rank was found on {format_names(empty, MAX_NAMED)}: root sees processes of other users too"
    if unmeasured := unmeasured_order(run):
        yield unmeasured
    blind = [host.name for host in run.answered if host.ranks and host.connections is None]
    if blind:
        yield f"{format_names(blind, MAX_NAMED)}: no `ss`, so bytes of connections are not known; iproute2 has it"
    apart = sorted({rank.host for rank in run.ranks if rank.foreign_network})
    if apart:
        yield f"{format_names(apart, MAX_NAMED)}: ranks are in a container's network, whose connections are not seen"
    refused = [host.name for host in run.answered if host.kernel_log_refused and host.gpus]
    if refused:
        yield f"{format_names(refused, MAX_NAMED)}: the kernel log, with Xids of GPUs, needs root"
