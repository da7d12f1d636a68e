"""The planning problem: the job, the fleet and its networks, as later modules take it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from planner.problem.candidates import Candidate, check_job
from planner.problem.coefficients import Coefficients, make_coefficients
from planner.problem.fleet import Fleet, read_fleet
from planner.problem.networks import Networks, require_bandwidth
from planner.problem.rails import Rails, read_rails
from planner.problem.sharded_weights import with_weight_traffic

T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """A job and the hosts of an inventory: its fleet of training slots and its networks."""

    inventory: Inventory
    job: Job
    fleet: Fleet
    networks: Networks

    def coefficients(self, candidate: Candidate) -> Coefficients:
        """Return the numbers that price `candidate`. They are computed once."""
        return self._coefficients(candidate)

    def once(self, make: Callable[[Problem], T]) -> T:
        """Return the result of `make` for this problem. It is computed once."""
        if make not in self._made:
            self._made[make] = make(self)
        found: T = self._made[make]
        return found

    @cached_property
    def _made(self) -> dict[object, Any]:
        return {}

    @cached_property
    def rails(self) -> Rails:
        """The rails that do not reach one another. A placement's ranks should communicate on the same rail."""
        return read_rails(self.inventory, self.job)

    @cached_property
    def simulated(self) -> set[object]:
        """The placements simulated so far."""
        return set()

    @cached_property
    def keeps_groups(self) -> dict[object, bool]:
        """By candidate and sites of a placement, True if its groups of ranks stay together; filled by checks."""
        return {}

    @cached_property
    def _coefficients(self) -> Callable[[Candidate], Coefficients]:
        def make(candidate: Candidate) -> Coefficients:
            coeffs = make_coefficients(self.job, self.fleet, self.networks, candidate)
            return with_weight_traffic(self.job, coeffs)

        return cache(make)


def read_problem(inventory: Inventory, job: Job) -> Problem:
    """Return the problem of placing `job` on the reachable hosts of `inventory`.

    Raises:
        HolmesError: The job contradicts itself, no host has a slot, or the speed of a slot is unknown.
    """
    check_job(job)
    if not inventory.hosts:
        raise HolmesError("the inventory has no hosts", "list hosts in hosts.yaml and run `holmes probe hosts.yaml`")
    inventory = inventory.for_job()
    networks = Networks(inventory, job)
    return Problem(inventory, job, read_fleet(inventory, job, networks), networks)


def require_rates(problem: Problem) -> None:
    """Raise HolmesError with host and netdev if a rate that the comparison of placements needs is not known."""
    job, fleet, networks = problem.job, problem.fleet, problem.networks
    if job.parallel.pp == job.fixed_dp == 1 or len(fleet.hosts) == 1:
        return
    clusters = {each.cluster for each in fleet.classes}
    for each in fleet.classes:
        name = each.hosts[0].name
        alone = len(each.hosts) == 1 and sum(kin.cluster == each.cluster for kin in fleet.classes) == 1
        if not each.hardware.rates.fabric_bytes_per_s and not alone:
            require_bandwidth(networks.route([name]), [name])
        if not each.hardware.rates.shared_bytes_per_s and len(clusters) > 1:
            require_bandwidth(networks.shared_route(name), [name])
