"""Join or separate clusters that facts leave open, by trials of RDMA between two hosts.

A trial that works shows one fabric. A trial that fails shows two fabrics only if each host works with another host:
otherwise a device, a tool or a limit may be the cause. Trials change nothing if they contradict one another, a proof or
a pin. The order of hosts and of trials does not matter.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from prober.fabrics.collisions import Pair
from prober.fabrics.placing import Groups, Placing, in_order
from prober.fabrics.same_fabric import agree, fit
from prober.fabrics.union_find import UnionFind

Verdict = Literal["works", "fails", "unknown"]
"""`fails`: nothing passed in either direction. `unknown`: it could not be tried."""


@dataclass(frozen=True)
class RdmaVerdict:
    """The verdict on RDMA between two hosts. `how` gives the devices and the result seen."""

    hosts: Pair
    verdict: Verdict
    how: str


Part = frozenset[int]
"""Positions in `placing.groups` of clusters that are one."""


@dataclass(frozen=True)
class SettledClusters:
    """The clusters after the trials. Each part is one cluster now."""

    placing: Placing
    trials: tuple[RdmaVerdict, ...]

    @cached_property
    def number_of(self) -> dict[str, int]:
        """The number of each host's cluster before the trials, by host name."""
        return {name: number for number, (_, names) in enumerate(self.placing.groups) for name in names}

    @cached_property
    def working(self) -> frozenset[str]:
        """Hosts with a trial that works."""
        return frozenset(name for trial in self.trials if trial.verdict == "works" for name in trial.hosts)

    @cached_property
    def apart(self) -> tuple[RdmaVerdict, ...]:
        """Trials that show two fabrics."""
        return tuple(
            trial for trial in self.trials if trial.verdict == "fails" and self.working.issuperset(trial.hosts)
        )

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The clusters that trials joined, and every other cluster by itself."""
        contradictory = {number for part in self.contradictory for number in part}
        consistent = [part for part in self._linked if part not in self.contradictory]
        return (*consistent, *(frozenset([number]) for number in sorted(contradictory)))

    @cached_property
    def contradictory(self) -> tuple[Part, ...]:
        """Clusters that trials would join against the facts, and which therefore stay apart."""
        return tuple(part for part in self._linked if len(part) > 1 and not self._may_be_one(part))

    @cached_property
    def groups(self) -> Groups:
        """The clusters in order of their first hosts."""
        groups = self.placing.groups
        named = []
        for part in self.parts:
            label = next((groups[number][0] for number in part if groups[number][0] is not None), None)
            named.append((label, self.hosts_of(part)))
        return in_order(named, self.placing.fabrics)

    @cached_property
    def answered(self) -> frozenset[str]:
        """The hosts that findings ask about and that trials joined with others, or separated from all others."""
        found = {name for part in self.parts if len(part) > 1 for name in self.hosts_of(part)}
        tried = {name for trial in self.apart for name in self.hosts_of(self.part_of(trial.hosts[0]))}
        tried |= {name for trial in self.apart for name in self.hosts_of(self.part_of(trial.hosts[1]))}
        still_open = {number for pair in self.open_pairs() for part in pair for number in part} if tried else set()
        found |= {name for name in tried if self.number_of[name] not in still_open}
        return self.placing.asked & found

    def hosts_of(self, part: Part) -> tuple[str, ...]:
        """Return the names of the part's hosts, cluster by cluster."""
        return tuple(name for number in sorted(part) for name in self.placing.groups[number][1])

    def part_of(self, host: str) -> Part:
        """Return the part that holds the host."""
        return self._part_at[self.number_of[host]]

    def open_pairs(self) -> Iterator[tuple[Part, Part]]:
        """Yield pairs of parts that findings ask about, and that neither facts nor trials join or separate."""
        asked = {self.number_of[name] for name in self.placing.asked}
        apart = {frozenset(map(self.part_of, trial.hosts)) for trial in self.apart}
        fabrics = {part: self.placing.fabrics[self.hosts_of(part)[0]] for part in self.parts}
        testable = [part for part in self.parts if fabrics[part].kind in ("InfiniBand", "RoCE")]
        for one, other in itertools.combinations(testable, 2):
            if asked & (one | other) and frozenset((one, other)) not in apart and self._looks_like_one(one, other):
                yield one, other

    @cached_property
    def _linked(self) -> tuple[Part, ...]:
        """Clusters linked by trials that work."""
        sets = UnionFind(range(len(self.placing.groups)))
        for trial in self.trials:
            if trial.verdict == "works":
                sets.join(self.number_of[name] for name in trial.hosts)
        return tuple(map(frozenset, sets.groups()))

    @cached_property
    def _part_at(self) -> dict[int, Part]:
        return {number: part for part in self.parts for number in part}

    @cached_property
    def _against(self) -> dict[int, set[int]]:
        """The clusters, by number, that proofs or trials separate from each cluster."""
        found: dict[int, set[int]] = {}
        for one, other in (*self.placing.partition.proved_apart, *(trial.hosts for trial in self.apart)):
            found.setdefault(self.number_of[one], set()).add(self.number_of[other])
            found.setdefault(self.number_of[other], set()).add(self.number_of[one])
        return found

    def _may_be_one(self, part: Part) -> bool:
        """Return True if no pin, proof or trial separates two of the part's hosts."""
        labels = {label for label, _ in (self.placing.groups[number] for number in part) if label is not None}
        torn = any(self._against.get(number, set()) & part for number in part)
        fabrics = [self.placing.fabrics[name] for name in self.hosts_of(part)]
        return len(labels) < 2 and not torn and len({each.transport for each in fabrics}) == 1 and agree(fabrics)

    def _looks_like_one(self, one: Part, other: Part) -> bool:
        """Return True if the two may be one, and the IPoIB networks of InfiniBand do not set them apart."""
        first, second = (self.placing.fabrics[self.hosts_of(part)[0]] for part in (one, other))
        if first.transport != second.transport or not self._may_be_one(one | other):
            return False
        return first.kind == "RoCE" or fit(first, second)


def settle(placing: Placing, trials: Collection[RdmaVerdict]) -> SettledClusters:
    """Return the clusters after `trials`. Without trials, facts alone decide."""
    known = (trial for trial in trials if set(trial.hosts) <= set(placing.fabrics))
    return SettledClusters(placing, tuple(sorted(known, key=lambda trial: (trial.hosts, trial.verdict, trial.how))))


def next_pairs(settled: SettledClusters) -> tuple[Pair, ...]:
    """Return pairs of hosts to try next, no host in two of them. Empty if no trial would show more.

    There is one for each open pair of clusters. A host whose trial failed is tried inside its own cluster, to learn
    whether it works at all.
    """
    tried = {frozenset(map(settled.part_of, trial.hosts)) for trial in settled.trials}
    taken: set[str] = set()
    chosen: list[Pair] = []
    untried = (parts for parts in settled.open_pairs() if frozenset(parts) not in tried)
    questions = ((_representative(settled, one), _representative(settled, other)) for one, other in untried)
    for pair in (*_controls(settled), *questions):
        if taken.isdisjoint(pair):
            taken.update(pair)
            chosen.append(pair)
    return tuple(chosen)


def _representative(settled: SettledClusters, part: Part) -> str:
    """Return the host to try for its cluster: one that is known to work, else the first."""
    names = settled.hosts_of(part)
    return next((name for name in names if name in settled.working), names[0])


def _controls(settled: SettledClusters) -> Iterator[Pair]:
    """Yield each host whose trial failed, with a neighbour. Leave out hosts that work elsewhere or were tried so."""
    failed = dict.fromkeys(name for trial in settled.trials if trial.verdict == "fails" for name in trial.hosts)
    inside = {
        name
        for trial in settled.trials
        if settled.number_of[trial.hosts[0]] == settled.number_of[trial.hosts[1]]
        for name in trial.hosts
    }
    for name in failed:
        neighbours = [other for other in settled.placing.groups[settled.number_of[name]][1] if other != name]
        if neighbours and name not in settled.working | inside:
            yield name, neighbours[0]
