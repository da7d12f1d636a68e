"""What a rule is: a check that yields evidence, with all that the finding says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holmes_core.records.inventory import Finding, Host, Severity

Evidence = Iterable[str]
PeerEvidence = Iterable[tuple[Sequence[str], str]]


@dataclass(frozen=True)
class Rule:
    """A rule about one host. `check` yields a line of evidence for each fault, nothing where facts are unknown."""

    id: str
    severity: Severity
    effect: str
    remedy: str
    check: Callable[[Host], Evidence]

    def findings(self, host: Host) -> Iterable[Finding]:
        """One finding a line of evidence."""
        for evidence in self.check(host):
            yield _finding(self, (host.name,), evidence)


@dataclass(frozen=True)
class PeerRule:
    """A rule about the hosts of one cluster together. `check` yields the hosts concerned and the evidence."""

    id: str
    severity: Severity
    effect: str
    remedy: str
    check: Callable[[Sequence[Host]], PeerEvidence]

    def findings(self, peers: Sequence[Host]) -> Iterable[Finding]:
        """One finding a fault."""
        for hosts, evidence in self.check(peers):
            yield _finding(self, tuple(hosts), evidence)


def _finding(rule: Rule | PeerRule, hosts: tuple[str, ...], evidence: str) -> Finding:
    return Finding(
        rule=rule.id, severity=rule.severity, hosts=hosts, evidence=evidence, effect=rule.effect, remedy=rule.remedy
    )


def differing(values: dict[str, object], what: str) -> PeerEvidence:
    """One fault if the known `values` (host: value) are not all equal; names the hosts of every value."""
    known = {host: value for host, value in values.items() if value is not None}
    groups: dict[str, list[str]] = {}
    for host, value in known.items():
        groups.setdefault(str(value), []).append(host)
    if len(groups) > 1:
        shown = "; ".join(f"{value} on {', '.join(hosts)}" for value, hosts in sorted(groups.items()))
        yield tuple(known), f"{what}: {shown}"
