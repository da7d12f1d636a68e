"""What a rule is: a check that yields evidence, with all that the finding and the catalogue say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from holmes_core.records.inventory import Finding, Host, Severity

FIELD = "field knowledge: seen in operation, no document is known that says it"


@dataclass(frozen=True)
class Seen:
    """A line of evidence with a remedy of its own: the rule's, with the names of the devices filled in."""

    evidence: str
    remedy: str


Evidence = Iterable[str | Seen]
PeerEvidence = Iterable[tuple[Sequence[str], str | Seen]]
Scope = Literal["cluster", "job"]
"""Which hosts are compared: those that share a fabric, or all of the job."""


@dataclass(frozen=True)
class About:
    """What is said of the findings of one rule, wherever they are made.

    `checks` ends the sentence "it is found when ..."; `source` names the document, file or thread that says so.
    """

    id: str
    severity: Severity
    checks: str
    effect: str
    remedy: str
    source: str

    def finding(self, hosts: Sequence[str], seen: str | Seen, remedy: str | None = None) -> Finding:
        """The finding of what was seen on `hosts`; a remedy that comes with the evidence or the call goes first."""
        evidence = seen.evidence if isinstance(seen, Seen) else seen
        own = seen.remedy if isinstance(seen, Seen) else remedy
        return Finding(
            rule=self.id,
            severity=self.severity,
            hosts=tuple(hosts),
            evidence=evidence,
            effect=self.effect,
            remedy=own or self.remedy,
        )


@dataclass(frozen=True)
class Rule(About):
    """A rule about one host. `check` yields a line of evidence for each fault, nothing where facts are unknown."""

    check: Callable[[Host], Evidence]

    def findings(self, host: Host) -> Iterable[Finding]:
        """One finding a line of evidence."""
        for seen in self.check(host):
            yield self.finding((host.name,), seen)


@dataclass(frozen=True)
class PeerRule(About):
    """A rule that compares hosts. `check` yields the hosts concerned and the evidence."""

    scope: Scope
    check: Callable[[Sequence[Host]], PeerEvidence]

    def findings(self, peers: Sequence[Host]) -> Iterable[Finding]:
        """One finding a fault."""
        for hosts, seen in self.check(peers):
            yield self.finding(hosts, seen)
