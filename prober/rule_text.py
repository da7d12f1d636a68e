"""The text of a rule, for its findings and for the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_core.records.inventory import Finding, Severity

FIELD = "field knowledge: seen in operation, no document is known that says it"
PIN = "pin `cluster:` in hosts.yaml"


@dataclass(frozen=True)
class EvidenceLine:
    """A line of evidence with its own remedy, such as the rule's with the names of devices filled in."""

    evidence: str
    remedy: str


@dataclass(frozen=True)
class RuleText:
    """The text that all findings of one rule share.

    `checks` completes the sentence "it is found when ...". `source` names the document, file or thread behind it.
    """

    id: str
    severity: Severity
    checks: str
    effect: str
    remedy: str
    source: str

    def finding(self, hosts: Sequence[str], seen: str | EvidenceLine, remedy: str | None = None) -> Finding:
        """Return the finding on `hosts`. A remedy of the evidence or the call overrides the rule's."""
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
