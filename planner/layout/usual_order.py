"""The usual rank order: what people get who list their hosts and set degrees, blind to which network lies between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from planner.layout.assign_hosts import Place, host_places
from planner.problem.candidates import Candidate
from planner.problem.coefficients import Terms, make_terms, stage_memory_bytes
from planner.problem.fleet import Fleet
from planner.search.placement import Found, Placement, usual_cut
from planner.search.price import price_hosts_s

MOST_PRICED = 40  # candidates, the most promising first; and no more than so many places of theirs:
MOST_PLACES = 50_000


def usual_places(inventory: Inventory, fleet: Fleet, candidate: Candidate) -> dict[tuple[int, int], Place]:
    """The place of each (stage, replica): hosts in inventory order, each replica's stages on consecutive places."""
    hosts = (fleet.hosts[host.name] for host in inventory.hosts if host.name in fleet.hosts)
    in_order = (where for host in hosts for where in host_places(host, candidate.tp))
    return {
        (stage, replica): where
        for replica in range(candidate.dp)
        for stage, where in zip(range(candidate.pp), in_order, strict=False)
    }


def usual_placement(job: Job, fleet: Fleet, candidate: Candidate, places: Mapping[tuple[int, int], Place]) -> Placement:
    """The cut that goes with it, fixed or even with the remainder on the first stages, and the classes of `places`."""
    sites = tuple(
        tuple(fleet.class_of[places[stage, replica].host] for replica in range(candidate.dp))
        for stage in range(candidate.pp)
    )
    microbatches = (candidate.num_microbatches(job.global_batch_size),) * candidate.dp
    return Placement(candidate, usual_cut(job, candidate.pp), sites, microbatches)


def misfit(job: Job, fleet: Fleet, placement: Placement, places: Mapping[tuple[int, int], Place]) -> str | None:
    """Which stage does not fit into the memory of which host, in words; None if all fit or memory is not known."""
    needed = [stage_memory_bytes(job, placement.candidate, stage, held) for stage, held in enumerate(placement.layers)]
    for (stage, _), where in sorted(places.items()):
        available = fleet.hosts[where.host].hardware.memory_bytes
        if available is not None and needed[stage] > available:
            return f"stage {stage} needs {needed[stage]} bytes on a GPU of host {where.host}, which has {available}"
    return None


def best_usual(
    inventory: Inventory, job: Job, fleet: Fleet, candidates: Iterable[tuple[float, Candidate]]
) -> Found | None:
    """The usual order with the degrees that suit it best; `candidates` come with seconds they cannot beat, ascending.

    None where no even cut fits.
    """
    best: Found | None = None
    priced = 0
    for count, (bound_s, candidate) in enumerate(candidates):
        priced += candidate.pp * candidate.dp
        enough = count >= MOST_PRICED or priced > MOST_PLACES
        if best is not None and (bound_s >= best.objective_s or enough):
            break
        places = usual_places(inventory, fleet, candidate)
        placement = usual_placement(job, fleet, candidate, places)
        terms = make_terms(job, fleet, candidate)
        if not _fits(terms, placement):
            continue
        hosts = [[places[s, r].host for r in range(candidate.dp)] for s in range(candidate.pp)]
        seconds = price_hosts_s(terms, fleet.class_of, placement.layers, hosts, placement.microbatches)
        if best is None or seconds < best.objective_s:
            best = Found(seconds, placement)
    return best


def _fits(terms: Terms, placement: Placement) -> bool:
    rows = zip(placement.sites, placement.layers, terms.capacity, strict=True)
    return all(held <= capacity[c] for row, held, capacity in rows for c in set(row))
