"""The specification of one integer program: its sets and parameters, in the letters of program.py's docstring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from planner.problem.candidates import Candidate
from planner.problem.coefficients import Coefficients
from planner.problem.exchange_rates import Site, replicas_by_cluster, rings_on_nic, sync_s_per_byte
from planner.problem.problem import Problem
from planner.search.closed_form import (
    Edge,
    NicUse,
    PortName,
    edge_of,
    exposed_sync_s,
    nic_use,
    shared_wires_s,
    site_stage_s,
)
from planner.tolerances import ROUNDING

MAX_CLASSES_FOR_ALL_SITES = 4  # with more, a stage is on one class, all classes of a cluster, or two clusters' classes

Kind = Literal["first", "middle", "last", "only"]


@dataclass(frozen=True)
class ProgramSpec:
    """The request for one program: a pace between `slow_s` and `slowest_s`; with `fixed_layers`, by stage, any pace.

    `at_most_s`: slower placements are of no use, though the program may still find one. `least_sync_s`: a lower bound
    on G. `crossing`: at least one stage is over several clusters; otherwise none is.
    """

    coeffs: Coefficients
    slow_s: float = 0.0
    slowest_s: float = 0.0
    at_most_s: float | None = None
    least_sync_s: float = 0.0
    crossing: bool = False
    fixed_layers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Parameters:
    """The sets and parameters of a program. Seconds are scaled (divided by `unit_s`) unless noted."""

    spec: ProgramSpec
    unit_s: float
    sites: tuple[Site, ...]

    @property
    def coeffs(self) -> Coefficients:
        """The coefficients of the candidate."""
        return self.spec.coeffs

    @property
    def pp(self) -> int:
        """p."""
        return self.coeffs.candidate.pp

    @property
    def indices(self) -> range:
        """I, as indices of `sites`."""
        return range(len(self.sites))

    @property
    def positions(self) -> dict[Kind, range]:
        """K, the kinds of stage that exist, with the possible positions of each."""
        if self.pp == 1:
            return {"only": range(1)}
        last = self.pp - 1
        kinds: dict[Kind, range] = {"first": range(1), "middle": range(1, last), "last": range(last, self.pp)}
        return {kind: positions for kind, positions in kinds.items() if positions}

    def near(self, i: int) -> Edge:
        """near[i], pacedNear[i]; in unscaled seconds."""
        return edge_of(self.coeffs, self.sites[i], self.sites[i])

    def far(self, i: int, j: int) -> Edge:
        """far[i,j], pacedFar[i,j]; in unscaled seconds."""
        return edge_of(self.coeffs, self.sites[i], self.sites[j])

    def nic(self, i: int, j: int) -> NicUse:
        """nic[i,j]; in unscaled seconds."""
        return nic_use(self.coeffs, self.sites[i], self.sites[j])

    def wires(self, i: int, j: int) -> Mapping[PortName, float]:
        """wire[w,i,j] by w; in unscaled seconds."""
        return shared_wires_s(self.coeffs, self.sites[i], self.sites[j])

    def stage_s(self, i: int, layers: int, position: int) -> float:
        """tau[i], dense[i] on the first stage and head[i] on the last."""
        ends = position == 0, position == self.pp - 1
        return site_stage_s(self.coeffs, self.sites[i], layers, ends) / self.unit_s

    def sync_s(self, i: int, position: int, layers: int, is_even: bool | None = None) -> float:
        """sync[i,k,a] of a stage at `position`; with `is_even` False, ring[i,k,a]."""
        coeffs = self.coeffs
        if coeffs.candidate.dp == 1:
            return 0.0
        stage_s = self.stage_s(i, layers, position) * self.unit_s
        per_byte = sync_s_per_byte(coeffs, self.sites[i], rings_on_nic(coeffs, self.sites[i]), is_even=is_even)
        return exposed_sync_s(coeffs, per_byte, coeffs.sync_bytes(position, layers), stage_s) / self.unit_s

    def share(self, i: int) -> int:
        """share[i]."""
        return self.coeffs.stages_per_host[self.sites[i][0]] if len(self.sites[i]) == 1 else 1

    def most_stages(self, i: int) -> int:
        """most[i]."""
        coeffs, site = self.coeffs, self.sites[i]
        if len(site) == 1:
            return min(self.pp, coeffs.most_stages[site[0]])
        pooled = sum(coeffs.group_slots[c] for c in site) // coeffs.candidate.dp
        return min(self.pp, 1 if self.crosses(i) else pooled)

    def even(self, i: int) -> int | None:
        """even[i]; None if clusters do not hold that, or there is only one."""
        return replicas_by_cluster(self.coeffs, self.sites[i]) if self.crosses(i) else None

    def crosses(self, i: int) -> bool:
        """Return True if the site is over several clusters."""
        return len({self.coeffs.cluster[c] for c in self.sites[i]}) > 1

    def fits(self, i: int, position: int, layers: int) -> bool:
        """Return True if memory holds a stage of `layers` at `position`, and the pace allows it."""
        within = self.spec.fixed_layers is not None or (
            self.stage_s(i, layers, position) * self.unit_s <= self.spec.slowest_s * (1 + ROUNDING)
        )
        within &= position > 0 or layers >= self.coeffs.first_dense
        return within and all(layers <= self.coeffs.capacity[position][c] for c in self.sites[i])

    def numbers_of_layers(self, i: int, positions: range) -> list[int]:
        """Return A for site i: numbers that fit at one of `positions`, at least those left by all other stages."""
        coeffs = self.coeffs
        fastest_s = min(coeffs.layer_s)
        is_known = fastest_s and not coeffs.first_dense
        within = int(self.spec.slowest_s * (1 + ROUNDING) / fastest_s) if is_known else coeffs.num_layers
        most = min(coeffs.num_layers, within)
        least = max(1, coeffs.num_layers - (self.pp - 1) * most)
        if not self.most_stages(i):
            return []
        return [a for a in range(least, most + 1) if any(self.fits(i, s, a) for s in positions)]


def make_parameters(spec: ProgramSpec, unit_s: float | None = None) -> Parameters:
    """Return the sets and parameters of `spec`; without `unit_s`, in a unit that suits solvers."""
    coeffs = spec.coeffs
    unit_s = unit_s or spec.at_most_s or spec.slowest_s * coeffs.num_microbatches or sum(coeffs.layer_s) or 1.0
    return Parameters(spec, unit_s, tuple(make_sites(coeffs, spec.crossing)))


def may_cross(problem: Problem, candidate: Candidate) -> bool:
    """Return True if some site over several clusters, from `make_sites`, has room for a stage."""
    classes, slots = problem.fleet.classes, Counter[str]()
    for each in classes:
        slots[each.cluster] += each.num_group_slots(candidate.tp)
    clusters = len(slots) if len(classes) <= MAX_CLASSES_FOR_ALL_SITES else 2
    return sum(count for _, count in slots.most_common(clusters)) >= candidate.dp


def make_sites(coeffs: Coefficients, crossing: bool) -> list[Site]:
    """Return I: every single class, sets of classes of one cluster and, if `crossing`, sets over several clusters."""
    classes, dp = range(len(coeffs.group_slots)), coeffs.candidate.dp
    if len(classes) <= MAX_CLASSES_FOR_ALL_SITES:
        sets = [site for size in range(1, len(classes) + 1) for site in combinations(classes, size)]
    else:
        clusters = sorted(set(coeffs.cluster))
        of = {x: tuple(c for c in classes if coeffs.cluster[c] == x) for x in clusters}
        sets = [(c,) for c in classes] + [site for site in of.values() if len(site) > 1]
        sets += [tuple(sorted(of[x] + of[y])) for x, y in combinations(clusters, 2)]
    sets = [site for site in sets if len(site) <= dp and all(coeffs.group_slots[c] for c in site)]
    return [site for site in sets if crossing or len({coeffs.cluster[c] for c in site}) == 1]
