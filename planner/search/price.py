"""The closed form of ranks as they stand in a plan, found without search or solver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from holmes_core.records.plan import PlanRank
from planner.problem.candidates import Candidate
from planner.problem.coefficients import Coefficients
from planner.problem.problem import Problem
from planner.search.closed_form import Exchange, Lane, edge_s, rings_on_nic, site_stage_s, step_s, sync_s_per_byte

Hosts = Sequence[Sequence[str]]
"""By stage and replica, the host of the tensor group."""


def price_ranks_s(
    problem: Problem,
    candidate: Candidate,
    layers: Sequence[int],
    ranks: Sequence[PlanRank],
    microbatches: Sequence[int],
) -> float:
    """Closed-form seconds of one step. `layers` are by pipeline rank, all its chunks together."""
    hosts = {(rank.pp_rank, rank.dp_rank): rank.host for rank in ranks if rank.tp_rank == 0}
    by_stage = [[hosts[stage, replica] for replica in range(candidate.dp)] for stage in range(candidate.pp)]
    return price_hosts_s(problem.coefficients(candidate), problem.fleet.class_of, layers, by_stage, microbatches)


def price_hosts_s(
    coeffs: Coefficients, class_of: Mapping[str, int], layers: Sequence[int], hosts: Hosts, microbatches: Sequence[int]
) -> float:
    """Closed-form seconds of one step with the tensor group of each stage and replica on the given host."""
    columns: dict[tuple[int, ...], list[int]] = {}
    for replica in range(coeffs.candidate.dp):
        columns.setdefault(tuple(class_of[row[replica]] for row in hosts), []).append(replica)
    if all(len(set(column)) == 1 for column in columns):
        parts = list(columns.values())
    else:
        parts = [list(range(coeffs.candidate.dp))]
    lanes = [_lane(coeffs, class_of, layers, hosts, replicas, microbatches) for replicas in parts]
    rates = _sync_rates(coeffs, class_of, hosts)
    return step_s(lanes, [Exchange(coeffs, held, rate) for held, rate in zip(layers, rates, strict=True)])


def _lane(
    coeffs: Coefficients,
    class_of: Mapping[str, int],
    layers: Sequence[int],
    hosts: Hosts,
    replicas: Sequence[int],
    microbatches: Sequence[int],
) -> Lane:
    last = len(layers) - 1
    sites = [tuple(sorted({class_of[row[replica]] for replica in replicas})) for row in hosts]
    stages = tuple(
        site_stage_s(coeffs, site, held, s == last) for s, (site, held) in enumerate(zip(sites, layers, strict=True))
    )
    edges = []
    for before, after in pairwise(hosts):
        ends = {(before[replica], after[replica]) for replica in replicas}
        pairs = {(class_of[a], class_of[b]) for a, b in ends if a != b or not coeffs.aligned}
        edges.append(max((edge_s(coeffs, (a,), (b,)) for a, b in pairs), default=0.0))
    return Lane(max(microbatches[replica] for replica in replicas), stages, tuple(edges))


def _sync_rates(coeffs: Coefficients, class_of: Mapping[str, int], hosts: Hosts) -> list[float]:
    """By stage, seconds per byte of its exchange, with the dp groups counted that share a host's NIC.

    They count no less than `rings_on_nic` assumed.
    """
    sites = [tuple(sorted({class_of[host] for host in row})) for row in hosts]
    far = [len({coeffs.cluster[c] for c in site}) > 1 for site in sites]
    leaving = [set(row) if len(set(row)) > 1 else set() for row in hosts]
    uses = Counter((host, far[s]) for s, members in enumerate(leaving) for host in members)
    rates = []
    for s, site in enumerate(sites):
        rings = max((uses[host, far[s]] for host in leaving[s]), default=0)
        rates.append(sync_s_per_byte(coeffs, site, max(rings, rings_on_nic(coeffs, site))))
    return rates
