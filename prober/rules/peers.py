"""Hosts compared: what most of them have is taken to be right, and the others are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prober.rules.rule import PeerEvidence

_MOST_NAMED = 6


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
    if len(known) < 2:
        return
    counts = {value: sum(other == value for other in known.values()) for value in known.values()}
    usual = max(counts, key=lambda value: (counts[value], value))
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
    listed = list(values)
    return max(listed, key=lambda value: (listed.count(value), value), default=None)
