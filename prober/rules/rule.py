"""What a rule is: a check that yields evidence, with all that the finding and the catalogue say of it.

Hosts are compared by the majority: what most of them have is taken to be right, and the others are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from holmes_core.records.inventory import Finding, Host, Severity

_MOST_NAMED = 6
NO_RAIL = "if it is to be no rail, leave it out of `rails:` in hosts.yaml"
NAME_IT = "name it by `rails:` in hosts.yaml"
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


def differing(values: Mapping[str, object], what: str) -> PeerEvidence:
    """One fault if the known `values` (host: value) are not all equal.

    It names the hosts that differ from the majority; without a majority, all of them.
    """
    groups: dict[str, list[str]] = {}
    for host, value in values.items():
        if value is not None:
            groups.setdefault(str(value), []).append(host)
    if len(groups) < 2:
        return
    count = sum(map(len, groups.values()))
    usual = next((value for value, hosts in groups.items() if 2 * len(hosts) > count), None)
    odd = [host for value, hosts in groups.items() if value != usual for host in hosts]
    shown = [f"{value} on {named(hosts)}" for value, hosts in sorted(groups.items()) if value != usual]
    if usual is not None:
        shown.append(f"{usual} on the other {len(groups[usual])}")
    yield tuple(odd), f"{what}: {'; '.join(shown)}"


def below(values: Mapping[str, float | None], what: str, show: Callable[[float], str]) -> PeerEvidence:
    """A fault for each known value that is below what most hosts have; the highest of those that equally many have."""
    known = {host: value for host, value in values.items() if value is not None}
    usual = majority(known.values())
    if usual is None:
        return
    lower: dict[float, list[str]] = {}
    for host, value in known.items():
        if value < usual:
            lower.setdefault(value, []).append(host)
    for value, hosts in sorted(lower.items()):
        yield tuple(hosts), f"{what}: {show(value)} here, {show(usual)} on most hosts of the cluster"


def named(hosts: Sequence[str]) -> str:
    """The hosts by name; of many, the first few and how many more."""
    if len(hosts) <= _MOST_NAMED:
        return ", ".join(hosts)
    return f"{', '.join(hosts[:_MOST_NAMED])} and {len(hosts) - _MOST_NAMED} more"


def majority(values: Iterable[float]) -> float | None:
    """The most frequent value, the highest of those that are equally frequent; None of none."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value), default=None)
