"""The audit of fleets with one fault each: it is named, of the right host, and nothing is said of the others.

The default tests plant a dozen faults in small fleets, the slow ones each kind once, the exhaustive ones 200 among 64
hosts.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from holmes_core.records.inventory import Finding
from prober.probe import ReadHost, inventory_of_read, read_recording
from tests.prober.fleet_machine import Machine, recording
from tests.prober.planted_faults import FAULTS, Fault
from tests.prober.planted_fleet import FLEETS, Fleet
from tests.seeds import few_of

SMALL, WHOLE = 8, 64
SEEDS, MUST_BE_NAMED = 200, 0.95
INFORMS = "I"


def read(machine: Machine) -> ReadHost:
    return read_recording(machine.name, recording(machine))


@functools.cache
def sound(fleet: Fleet, number: int) -> ReadHost:
    """A machine without a fault: read once, however many fleets it stands in."""
    return read(fleet.machine(number))


@dataclass(frozen=True)
class Said:
    """What the audit said of a fleet with one fault; `concerned` are the hosts that have it."""

    kind: str
    fault: Fault
    concerned: frozenset[str]
    victim: str
    findings: Sequence[Finding]

    @property
    def named(self) -> bool:
        """A finding of an expected rule is about the host, and about no host that is sound."""
        return any(f.rule in self.fault.rules and self._is_of_the_victim(f) for f in self.findings)

    @property
    def unexplained(self) -> list[str]:
        """Findings above I that the fault does not explain: of other hosts, or of another rule."""
        explained = self.fault.rules | self.fault.also
        graver = [f for f in self.findings if f.severity != INFORMS]
        return [
            f"{self.kind}: {f.rule} of {', '.join(f.hosts)}: {f.evidence}"
            for f in graver
            if f.rule not in explained or not self._is_of_the_victim(f)
        ]

    def _is_of_the_victim(self, finding: Finding) -> bool:
        if finding.severity == INFORMS != self.fault.lightest:
            return False
        return self.victim in finding.hosts and set(finding.hosts) <= self.concerned


def plant(fleet: Fleet, kind: str, choose: random.Random) -> Said:
    """The audit of the fleet after that fault was planted in one of its hosts."""
    fault = FAULTS[kind]
    numbers = [n for n in range(fleet.hosts) if fault.fabric in (None, fleet.machine(n).ports[0].kind)]
    at = choose.choice(numbers)
    beside = choose.choice(fleet.neighbours(at))
    machine, other = fleet.machine(at), fleet.machine(beside)
    fault.plant(machine, other, choose)
    hosts = [sound(fleet, number) for number in range(fleet.hosts)]
    hosts[at] = read(machine)
    if fault.both:
        hosts[beside] = read(other)
    concerned = frozenset((machine.name, other.name) if fault.both else (machine.name,))
    return Said(kind, fault, concerned, machine.name, inventory_of_read(hosts).findings)


def fits(kind: str, fleet: Fleet) -> bool:
    fabric = FAULTS[kind].fabric
    return any(fabric in (None, fleet.machine(n).ports[0].kind) for n in (0, fleet.hosts - 1))


def planted(seed: int, hosts: int) -> Said:
    """A fleet, a host and a fault by chance."""
    choose = random.Random(seed)
    fleet = Fleet(choose.choice(list(FLEETS.values())), hosts)
    return plant(fleet, choose.choice([kind for kind in FAULTS if fits(kind, fleet)]), choose)


def assert_told(said: Sequence[Said]) -> None:
    missed = [each.kind for each in said if not each.named]
    assert len(missed) <= (1 - MUST_BE_NAMED) * len(said), missed
    assert [line for each in said for line in each.unexplained] == []


@pytest.mark.parametrize("name", few_of(1, FLEETS))
def test_nothing_is_said_of_a_sound_fleet(name: str) -> None:
    fleet = Fleet(FLEETS[name], SMALL)
    inventory = inventory_of_read([sound(fleet, number) for number in range(SMALL)])
    assert [finding for finding in inventory.findings if finding.severity != INFORMS] == []
    assert len(inventory.clusters) == len(FLEETS[name])
    assert {len(cluster.fabric.ports[0].hcas) for cluster in inventory.clusters} == {8}


@pytest.mark.parametrize("number", few_of(1, [4, 12]))
def test_planted_faults_are_named(number: int) -> None:
    assert_told([planted(seed, SMALL) for seed in range(number)])


def test_there_are_many_kinds_of_faults_and_each_fits_a_fleet() -> None:
    assert len(FAULTS) >= 80
    assert all(any(fits(kind, Fleet(kinds, SMALL)) for kinds in FLEETS.values()) for kind in FAULTS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FLEETS)
def test_nothing_is_said_of_a_sound_fleet_of_64(name: str) -> None:
    fleet = Fleet(FLEETS[name], WHOLE)
    findings = inventory_of_read([sound(fleet, number) for number in range(WHOLE)]).findings
    assert [finding for finding in findings if finding.severity != INFORMS] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_every_kind_of_fault_is_named_in_every_fleet(kind: str) -> None:
    fleets = [fleet for kinds in FLEETS.values() if fits(kind, fleet := Fleet(kinds, SMALL))]
    said = [plant(fleet, kind, random.Random(kind)) for fleet in fleets]
    assert all(each.named for each in said)
    assert [line for each in said for line in each.unexplained] == []


@pytest.mark.exhaustive
def test_200_planted_faults_among_64_hosts_are_named() -> None:
    assert_told([planted(seed, WHOLE) for seed in range(SEEDS)])
