"""The rule of an audit: the text of its findings, and the check that yields their evidence.

Hosts are compared by majority: the value of most hosts counts as right, and findings name the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holmes_core.records.inventory import Finding, Host
from holmes_core.units import format_names
from prober.rule_text import EvidenceLine, RuleText

_MAX_NAMED = 6
NO_RAIL = "if it is to be no rail, leave it out of `rails:` in hosts.yaml"
NAME_IT = "name it by `rails:` in hosts.yaml"

Evidence = Iterable[str | EvidenceLine]
PeerEvidence = Iterable[tuple[Sequence[str], str | EvidenceLine]]
Scope = Literal["cluster", "job"]
"""The hosts that are compared: the hosts of one fabric, or all hosts of the job."""


@dataclass(frozen=True)
class Rule(RuleText):
    """A rule about one host. `check` yields a line of evidence for each fault, and nothing if facts are unknown."""

    check: Callable[[Host], Evidence]

    def findings(self, host: Host) -> Iterable[Finding]:
        """Yield a finding for each line of evidence."""
        for seen in self.check(host):
            yield self.finding((host.name,), seen)


@dataclass(frozen=True)
class PeerRule(RuleText):
    """A rule that compares hosts. `check` yields the affected hosts and the evidence for each fault."""

    check: Callable[[Sequence[Host]], PeerEvidence]
    scope: Scope = "cluster"

    def findings(self, peers: Sequence[Host]) -> Iterable[Finding]:
        """Yield a finding for each fault."""
        for hosts, seen in self.check(peers):
            yield self.finding(hosts, seen)


def together(template: str, names: Iterable[str]) -> Evidence:
    """Yield `template` with all names in its hole, if there are any names."""
    if text := ", ".join(names):
        yield template.format(text)


def distinct(values: Iterable[Any]) -> str | None:
    """Return the distinct known values in order as one text, or None if no value is known."""
    return ", ".join(str(value) for value in sorted({*values} - {None})) or None


def differing(hosts: Iterable[Host], what: str, value_of: Callable[[Host], object]) -> PeerEvidence:
    """Yield one fault if the known values of `hosts` are not all equal.

    It names the hosts that differ from the majority, or all hosts if there is no majority.
    """
    groups: dict[str, list[str]] = {}
    for host in hosts:
        if (value := value_of(host)) is not None:
            groups.setdefault(str(value), []).append(host.name)
    if len(groups) < 2:
        return
    count = sum(map(len, groups.values()))
    usual = next((value for value, names in groups.items() if 2 * len(names) > count), None)
    odd = [name for value, names in groups.items() if value != usual for name in names]
    shown = [f"{value} on {named(names)}" for value, names in sorted(groups.items()) if value != usual]
    if usual is not None:
        shown.append(f"{usual} on the other {len(groups[usual])}")
    yield tuple(odd), f"{what}: {'; '.join(shown)}"


def below(
    hosts: Iterable[Host], what: str, value_of: Callable[[Host], float | None], show: Callable[[float], str]
) -> PeerEvidence:
    """Yield a fault for each known value that is below the value of most hosts."""
    known = {host.name: value for host in hosts if (value := value_of(host)) is not None}
    usual = majority(known.values())
    if usual is None:
        return
    lower: dict[float, list[str]] = {}
    for name, value in known.items():
        if value < usual:
            lower.setdefault(value, []).append(name)
    for value, names in sorted(lower.items()):
        yield tuple(names), f"{what}: {show(value)} here, {show(usual)} on most hosts of the cluster"


def named(hosts: Sequence[str]) -> str:
    """Return the names of hosts. Of many, return the first few and the number of others."""
    return format_names(hosts, _MAX_NAMED)


def majority(values: Iterable[float]) -> float | None:
    """Return the most frequent value, or the highest of several equally frequent ones. None without values."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value), default=None)
