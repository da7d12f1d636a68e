"""The diagnosis of a run from NCCL's logs: one verdict or the reason why there is none, and further findings."""

from __future__ import annotations

from dataclasses import dataclass

from prober.nccl_logs.cause_texts import LogFinding
from prober.nccl_logs.failure_causes import failures
from prober.nccl_logs.log_facts import LogFacts
from prober.nccl_logs.nccl_lines import Evidence
from prober.nccl_logs.run_facts import RDMA, RunFacts, evidence_of_network, run_facts
from prober.nccl_logs.slow_causes import remarks, slow_causes

SOUND = "none"
WHOLE_LOG = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET,GRAPH"


@dataclass(frozen=True)
class Diagnosis:
    """The verdict on a run. `cause` is an id, `none` for a sound run, or None where the logs allow no verdict.

    `needed` says then what would allow one, and `evidence` has the line that raises the question.
    """

    run: RunFacts
    cause: str | None
    says: str
    remedy: str
    evidence: tuple[Evidence, ...]
    also: tuple[LogFinding, ...]
    needed: str


def diagnose(facts: LogFacts) -> Diagnosis:
    """Return the diagnosis that the facts allow."""
    run = run_facts(facts)
    findings = [*failures(facts, run), *slow_causes(facts, run), *remarks(facts, run)]
    verdict = next((finding for finding in findings if not finding.is_remark), None)
    also: dict[str, LogFinding] = {}
    for finding in findings:
        if verdict is None or finding.cause != verdict.cause:
            also.setdefault(finding.cause, finding)
    rest = tuple(also.values())
    if verdict:
        return Diagnosis(run, verdict.cause, verdict.says, verdict.remedy, verdict.evidence, rest, "")
    if reason := _no_verdict(facts, run):
        says, needed, line = reason
        return Diagnosis(run, None, says, "", (line,) if line else (), rest, needed)
    line = evidence_of_network(facts)
    return Diagnosis(run, SOUND, "nothing wrong found", "", (line,) if line else (), rest, "")


def _no_verdict(facts: LogFacts, run: RunFacts) -> tuple[str, str, Evidence | None] | None:
    """Return why the logs allow no verdict, what would, and the line; None if they show a sound run."""
    completed = facts.completed
    whole = f"run again with {WHOLE_LOG} on all ranks, and pass the logs of all hosts"
    if odd := facts.first("odd-family"):
        says = "An address reads as nonsense: NCCL_SOCKET_IFNAME matches nothing, or versions of NCCL differ"
        return says, f"{whole}; NCCL's `Bootstrap: Using` and `NCCL version` lines tell the two apart", odd.evidence
    fatal, warning, closed = facts.first("fatal"), facts.first("other-warning", "cuda"), facts.first("peer-closed")
    if fatal or (not completed and (warning or facts.first("truncated"))):
        sighting = facts.first("cuda", "other-warning", "truncated", "completion", "peer-closed", "fatal")
        line = sighting.evidence if sighting else None
        if closed and not warning:
            says = "A peer ended first; these logs have only what followed"
            return says, "pass the log of the rank that ended first", line
        return "NCCL failed by an error that no rule knows", whole, line
    channels = any(each.direct or each.plain or each.inside for each in facts.processes.values())
    started = next((process.started for process in facts.processes.values() if process.started), None)
    if started and not completed and not channels:
        largest = facts.largest
        seen = f"{len(largest.ranks)} of {largest.num_ranks} ranks are in the logs" if largest else "ranks are missing"
        says = f"A communicator is begun and never made: {seen}"
        return says, f"pass the logs of all ranks; if they are all here, {whole}", started
    if run.is_one_host and (completed or channels):
        return None
    if run.network is None:
        if completed or any(process.inside for process in facts.processes.values()):
            return None if channels and not facts.first("bootstrap") else _unseen(whole)
        return _unseen(whole)
    if run.network == "Socket":
        says = "Traffic between hosts is TCP, and no line says why"
        return (
            says,
            f"run again with {WHOLE_LOG}, whose NET/IB and NET/Plugin lines say why",
            evidence_of_network(facts),
        )
    if run.network in RDMA or run.network.startswith("plugin:"):
        return None
    return _unseen(whole)


def _unseen(whole: str) -> tuple[str, str, None]:
    return "The logs end before NCCL chooses its network, or have no line of it", whole, None
