"""The rule of an audit: the text of its findings, and the check that yields their evidence.

Hosts are compared by the majority: the value of most hosts counts as right, and findings name the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from holmes_core.records.inventory import Finding, Host
from holmes_core.units import format_names
from prober.rule_text import EvidenceLine, RuleText

_MAX_NAMED = 6
NO_RAIL = "if it is to be no rail, leave it out of `rails:` in hosts.yaml"
NAME_IT = "name it by `rails:` in hosts.yaml"

Evidence = Iterable[str | EvidenceLine]
PeerEvidence = Iterable[tuple[Sequence[str], str | EvidenceLine]]
Scope = Literal["cluster", "job"]
"""The hosts that are compared: hosts of one fabric, or all of the job."""


@dataclass(frozen=True)
class Rule(RuleText):
    """A rule about one host. `check` yields a line of evidence for each fault, nothing where facts are unknown."""

    check: Callable[[Host], Evidence]

    def findings(self, host: Host) -> Iterable[Finding]:
        """One finding a line of evidence."""
        for seen in self.check(host):
            yield self.finding((host.name,), seen)


@dataclass(frozen=True)
class PeerRule(RuleText):
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
    return format_names(hosts, _MAX_NAMED)


def majority(values: Iterable[float]) -> float | None:
    """The most frequent value, the highest of those that are equally frequent; None of none."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value), default=None)
