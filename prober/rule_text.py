"""The text of a rule: one for its findings, wherever they are made, and for the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_core.records.inventory import Finding, Severity

FIELD = "field knowledge: seen in operation, no document is known that says it"
PIN = "pin `cluster:` in hosts.yaml"


@dataclass(frozen=True)
class EvidenceLine:
    """A line of evidence with its own remedy: the rule's, with the names of the devices filled in."""

    evidence: str
    remedy: str


@dataclass(frozen=True)
class RuleText:
    """The text that all findings of one rule share.

    `checks` ends the sentence "it is found when ..."; `source` names the document, file or thread that says so.
    """

    id: str
    severity: Severity
    checks: str
    effect: str
    remedy: str
    source: str

    def finding(self, hosts: Sequence[str], seen: str | EvidenceLine, remedy: str | None = None) -> Finding:
        """The finding of what was seen on `hosts`; a remedy that comes with the evidence or the call goes first."""
        evidence = seen.evidence if isinstance(seen, EvidenceLine) else seen
        own = seen.remedy if isinstance(seen, EvidenceLine) else remedy
        return Finding(
            rule=self.id,
            severity=self.severity,
            hosts=tuple(hosts),
            evidence=evidence,
            effect=self.effect,
            remedy=own or self.remedy,
        )
