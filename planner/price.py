"""The closed form of ranks as they stand in a plan, found without the solver."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.inventory import Inventory
from holmes_core.job import Job
from holmes_core.plan import PlanRank
from planner.candidates import Candidate
from planner.closed_form import step_s
from planner.fleet import Fleet
from planner.terms import make_terms, no_links, read_links


def price_s(
    inventory: Inventory,
    job: Job,
    fleet: Fleet,
    candidate: Candidate,
    layers: Sequence[int],
    ranks: Sequence[PlanRank],
) -> float:
    """Closed-form seconds of one step. When all ranks are on one host, nothing crosses a network."""
    hosts = {rank.host for rank in ranks}
    if len(hosts) == 1:
        fleet = fleet.alone(min(hosts))
        links = no_links(fleet)
    else:
        links = read_links(inventory, job, fleet)
    names = [cluster.name for cluster in fleet.clusters]
    cluster = {(rank.pp_rank, rank.dp_rank): names.index(rank.cluster) for rank in ranks}
    sites = [tuple(cluster[stage, replica] for replica in range(candidate.dp)) for stage in range(candidate.pp)]
    return step_s(make_terms(job, fleet, links, candidate), layers, sites)
