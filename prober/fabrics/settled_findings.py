"""Report on clusters that facts leave open: the results of RDMA trials, and the questions that remain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holmes_core.records.inventory import Finding
from prober.fabrics.settle import Part, RdmaVerdict, SettledClusters
from prober.rule_text import PIN, RuleText

MAX_TRIALS_SHOWN = 4

_RULE = "CLUSTER-BY-MEASUREMENT"
_SOURCE = "perftest, ib_write_bw; Holmes, docs/probe.md (which hosts are one cluster)"

ONE = RuleText(
    _RULE,
    "I",
    "with --links, RDMA works between hosts that the facts kept apart",
    "none: they are one cluster",
    "nothing; `cluster:` in hosts.yaml pins it for later probes without --links",
    _SOURCE,
)
TWO = RuleText(
    _RULE,
    "I",
    "with --links, RDMA between two hosts fails both ways, though each works with another host",
    "none: they are in separate clusters",
    f"nothing; if it is one fabric all the same, correct what keeps them apart, or {PIN}",
    _SOURCE,
)
CONTRADICTORY = RuleText(
    _RULE,
    "W",
    "with --links, trials of RDMA contradict one another, or what facts or pins prove",
    "the clusters stay as facts gave them; groups of hosts that work together may go over sockets",
    f"look at routes, partitions and access lists between these hosts, then {PIN}",
    _SOURCE,
)
UNDECIDED = RuleText(
    _RULE,
    "W",
    "with --links, RDMA between hosts that facts left open could not be tried, or fails where neither works elsewhere",
    "they are in separate clusters, and reach one another by sockets",
    f"install perftest on both and open their ports to one another, or {PIN}",
    _SOURCE,
)
TEXTS = (ONE, TWO, CONTRADICTORY, UNDECIDED)


def settled_findings(settled: SettledClusters) -> Iterator[Finding]:
    """Yield a finding on each joined cluster, each separation, and each trial that decides nothing."""
    for part in settled.parts:
        if len(part) > 1:
            seen = f"RDMA works between hosts that facts left apart: {_shown(_joining(settled, part))}"
            yield ONE.finding(settled.hosts_of(part), seen)
    for trial in settled.apart:
        if not _same(settled, trial) and not _doubted(settled, trial):
            seen = f"RDMA fails both ways, and each works with another host: {_shown([trial])}"
            yield TWO.finding(trial.hosts, seen)
    for part in settled.contradictory:
        apart = [trial for trial in settled.apart if {settled.number_of[name] for name in trial.hosts} <= part]
        against = f"and does not: {_shown(apart)}" if apart else "though facts or pins prove some of these hosts apart"
        seen = f"measurements contradict: RDMA works ({_shown(_joining(settled, part))}), {against}"
        yield CONTRADICTORY.finding(settled.hosts_of(part), seen)
    decided = {trial.hosts for trial in settled.apart}
    for trial in settled.trials:
        if trial.verdict != "works" and trial.hosts not in decided and not _same(settled, trial):
            yield _undecided(trial, settled)


def _undecided(trial: RdmaVerdict, settled: SettledClusters) -> Finding:
    alone = [name for name in trial.hosts if name not in settled.working]
    why = f"; {' and '.join(alone)} not known to work with any host" if trial.verdict == "fails" else ""
    return UNDECIDED.finding(trial.hosts, f"no measurement tells whether it is one fabric: {_shown([trial])}{why}")


def _joining(settled: SettledClusters, part: Part) -> list[RdmaVerdict]:
    """Return the working trials between clusters of the part."""
    return [
        trial
        for trial in settled.trials
        if trial.verdict == "works"
        and {settled.number_of[name] for name in trial.hosts} <= part
        and settled.number_of[trial.hosts[0]] != settled.number_of[trial.hosts[1]]
    ]


def _same(settled: SettledClusters, trial: RdmaVerdict) -> bool:
    """Return True if the trial's hosts are one cluster now."""
    return settled.part_of(trial.hosts[0]) == settled.part_of(trial.hosts[1])


def _doubted(settled: SettledClusters, trial: RdmaVerdict) -> bool:
    """Return True if other trials contradict the trial."""
    numbers = {settled.number_of[name] for name in trial.hosts}
    return any(numbers <= part for part in settled.contradictory)


def _shown(trials: Iterable[RdmaVerdict]) -> str:
    shown = [f"{trial.hosts[0]} and {trial.hosts[1]}: {trial.how}" for trial in trials]
    more = len(shown) - MAX_TRIALS_SHOWN
    return "; ".join(shown[:MAX_TRIALS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
