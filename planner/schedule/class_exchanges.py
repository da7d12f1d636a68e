"""The exchange of gradients and weights of each pipeline rank, at the level of classes of hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holmes_core.records.job import Job
from planner.cost.collectives import exchange_share
from planner.cost.engines import engine_of
from planner.problem.coefficients import Coefficients
from planner.problem.exchange_rates import (
    Site,
    are_even,
    inside_latency_s,
    levels_s_per_byte,
    rings_on_nic,
    site_latency_s,
    sync_s_per_byte,
    trunk_slowdowns,
)
from planner.schedule.buckets import BucketExchange, exchange_among
from planner.schedule.step_seconds import Exchange, in_two_levels
from planner.search.placement import Placement


class ClassExchanges:
    """The exchanges of one placement. `sites`: classes of each stage; `is_one_lane`: all replicas form one lane."""

    def __init__(
        self, job: Job, coeffs: Coefficients, placement: Placement, sites: Sequence[Site], is_one_lane: bool
    ) -> None:
        self._job, self._coeffs, self._placement, self._sites = job, coeffs, placement, sites
        self._is_one_lane = is_one_lane

    def by_rank(self) -> list[Exchange]:
        """Return the exchange of each pipeline rank, the same object for equal ones."""
        rows, found = self._placement.sites, dict[object, Exchange]()
        kinds = list(zip(rows, trunk_slowdowns(self._coeffs, self._sites, self._placement.layers), strict=True))
        for rank, (row, times_as_long) in enumerate(kinds):
            if (row, times_as_long) not in found:
                found[row, times_as_long] = self._exchange(rank, times_as_long)
        return [found[kind] for kind in kinds]

    def _exchange(self, rank: int, times_as_long: float) -> Exchange:
        """Return the exchange of a pipeline rank, slowed down by `times_as_long` on a trunk."""
        coeffs, site, row = self._coeffs, self._sites[rank], self._placement.sites[rank]
        candidate, rings = coeffs.candidate, rings_on_nic(coeffs, site, None if self._is_one_lane else Counter(row))
        if candidate.copies > 1:
            inside_s, across_s = levels_s_per_byte(coeffs, site, rings, times_as_long)
            inside = self._level(candidate.dp // candidate.copies, inside_s, rings, inside_latency_s(coeffs, site))
            across = self._level(candidate.copies, across_s, rings, site_latency_s(coeffs, site))
            engine = engine_of(self._job)
            return lambda parameters: in_two_levels(engine, inside(parameters), across(parameters))
        is_even = are_even(coeffs.cluster[c] for c in row)
        s_per_byte = sync_s_per_byte(coeffs, site, rings, times_as_long, is_even)
        return self._level(candidate.dp, s_per_byte, rings, site_latency_s(coeffs, site))

    def _level(self, num_ranks: int, s_per_byte: float, rings: int, latency_s: float) -> Exchange:
        """Return the exchange among `num_ranks` ranks that takes `s_per_byte` of the parameters in transit."""
        device, coeffs = self._job.device, self._coeffs
        travels_bytes = coeffs.engine.travels_bytes(self._job.value_bytes)
        gather_part = travels_bytes[1] / sum(travels_bytes)
        share = exchange_share(num_ranks, device) if rings else 1.0
        s_per_parameter = s_per_byte / share * (coeffs.candidate.tp * sum(travels_bytes))

        def exchange(parameters: int) -> BucketExchange:
            seconds = s_per_parameter * parameters
            return exchange_among(num_ranks, device, seconds * (1 - gather_part), seconds * gather_part, latency_s)

        return exchange
