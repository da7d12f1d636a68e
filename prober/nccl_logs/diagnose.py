"""The diagnosis of a run from NCCL's logs: a verdict, or the reason for none, and further findings."""

from __future__ import annotations

from dataclasses import dataclass

from prober.nccl_logs.cause_texts import LogFinding
from prober.nccl_logs.failure_causes import blocked, failures
from prober.nccl_logs.log_facts import LogFacts
from prober.nccl_logs.nccl_lines import Evidence
from prober.nccl_logs.run_facts import RunFacts, evidence_of_network, run_facts
from prober.nccl_logs.slow_causes import remarks, slow_causes

SOUND = "none"
_FAILURES = ("completion", "modify-qp", "register-failed", "no-network", "timeout")
SUBSYSTEMS = "INIT,BOOTSTRAP,ENV,NET,GRAPH"
WHOLE_LOG = f"NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS={SUBSYSTEMS}"


@dataclass(frozen=True)
class Diagnosis:
    """The verdict on a run. `cause` is an id, `none` for a sound run, or None if the logs allow no verdict.

    Without a verdict, `needed` says how to get one, and `evidence` has the line that raises the question. With
    `is_open`, the cause is a fault only if hosts have hardware that no line shows.
    """

    run: RunFacts
    cause: str | None
    says: str
    remedy: str
    evidence: tuple[Evidence, ...]
    also: tuple[LogFinding, ...]
    needed: str
    is_open: bool = False


def diagnose(facts: LogFacts) -> Diagnosis:
    """Return the diagnosis from the facts of the logs."""
    run = run_facts(facts)
    findings = [*failures(facts, run), *slow_causes(facts, run), *remarks(facts, run)]
    verdicts = [finding for finding in findings if not finding.is_remark]
    followed = [each for each in verdicts if each.cause == "efa-plugin-failed"]  # sockets would carry nothing with it
    if verdicts and verdicts[0].cause in ("wrong-interface", "bootstrap-blocked"):
        verdicts = [*followed, *verdicts]
    verdict = verdicts[0] if verdicts else None
    also: dict[str, LogFinding] = {}
    for finding in findings:
        follows = verdict is not None and set(finding.evidence) <= set(verdict.evidence)  # only from its lines
        if finding.is_remark or not follows:
            also.setdefault(finding.cause, finding)
    if verdict is not None:
        also.pop(verdict.cause, None)
    rest = tuple(also.values())
    if verdict:
        return Diagnosis(run, verdict.cause, verdict.says, verdict.remedy, verdict.evidence, rest, "", verdict.is_open)
    reason = _no_verdict(facts, run)
    says, needed, line = reason or ("nothing wrong found", "", evidence_of_network(facts))
    return Diagnosis(run, None if reason else SOUND, says, "", (line,) if line else (), rest, needed)


def _no_verdict(facts: LogFacts, run: RunFacts) -> tuple[str, str, Evidence | None] | None:
    """Return the reason for no verdict, what would allow one, and the line. Return None for a sound run."""
    whole = f"run again with {WHOLE_LOG} on all ranks, and pass the logs of all hosts"
    return _failed(facts, whole) or _unfinished(facts, whole) or _unexplained(facts, run, whole) or _unread(facts)


def _failed(facts: LogFacts, whole: str) -> tuple[str, str, Evidence | None] | None:
    """Return the reason if the run fails and the logs do not have the cause."""
    if odd := facts.line("odd-family"):
        says = "An address reads as nonsense: NCCL_SOCKET_IFNAME matches nothing, or versions of NCCL differ"
        return says, f"{whole}; NCCL's `Bootstrap: Using` and `NCCL version` lines tell the two apart", odd
    if truncated := facts.line("truncated"):
        says = (
            "Two ranks disagree about the size of a message: their variables or versions of NCCL differ, or their calls"
        )
        return says, f"{whole}: their ENV lines show what differs", truncated
    warning, closed = facts.first("other-warning", "cuda"), facts.line("peer-closed")
    failed = facts.line(*_FAILURES) or next((each.evidence for each in blocked(facts)), None)
    if warning is None and failed is None and closed:
        says = "A peer ended first; these logs have only what followed"
        return says, "pass the log of the rank that ended first", closed
    fatal = facts.first("fatal")
    if failed or ((warning or fatal) and (not facts.completed or (warning and fatal))):
        line = failed or facts.line("cuda", "other-warning", "p2p-broken", "fatal")
        return "NCCL failed by an error that no rule knows", whole, line
    return None


def _unfinished(facts: LogFacts, whole: str) -> tuple[str, str, Evidence | None] | None:
    """Return the reason if a communicator is begun and never made."""
    started = next((process.started for process in facts.processes.values() if process.started), None)
    if started is None or facts.completed or _has_channels(facts) or facts.largest is None:
        return None
    says = f"{len(facts.largest.ranks)} of {facts.largest.num_ranks} ranks are in the logs"
    says = f"A communicator is begun and never made: {says}"
    return says, f"pass the logs of all ranks; if they are all here, {whole}", started


def _has_channels(facts: LogFacts) -> bool:
    return any(each.direct or each.plain or each.inside for each in facts.processes.values())


def _unexplained(facts: LogFacts, run: RunFacts, whole: str) -> tuple[str, str, Evidence | None] | None:
    """Return the reason if no line names the network or explains its use of TCP. Return None for a sound run."""
    if run.is_one_host and (facts.completed or _has_channels(facts)):
        return None
    if run.network == "Socket" and run.uses_network is None:
        says = "The channels in the logs stay inside one host, and no line says whether the run has others"
        return says, whole, evidence_of_network(facts)
    if run.network == "Socket" and run.uses_network:
        says = "Traffic between hosts is TCP, and no line says why"
        needed = f"run again with {WHOLE_LOG}, whose NET/IB and NET/Plugin lines say why"
        return says, needed, evidence_of_network(facts)
    if run.network is None and run.gdr is not True:
        return "The logs have no line of the network that NCCL chose", whole, None
    return None


def _unread(facts: LogFacts) -> tuple[str, str, Evidence | None] | None:
    """Return the reason if the logs are too large."""
    if facts.left_out or any(size.skipped for size in facts.files.values()):
        says = "Nothing wrong is in what was read, and the logs are too large to be read to their ends"
        needed = "pass the logs of some hosts only, of a run with fewer subsystems in NCCL_DEBUG_SUBSYS"
        return says, needed, evidence_of_network(facts)
    return None
