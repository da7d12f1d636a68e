"""The usual rank order: what people get who list their hosts and set degrees, blind to which network lies between."""

from __future__ import annotations

from holmes_core.inventory import Inventory
from holmes_core.job import Job
from planner.candidates import Candidate
from planner.fleet import Fleet
from planner.place import Place, free_places
from planner.search import Placement, even_layers
from planner.terms import stage_memory_bytes


def usual_places(inventory: Inventory, fleet: Fleet, candidate: Candidate) -> dict[tuple[int, int], Place]:
    """The place of each (stage, replica): hosts in inventory order, each replica's stages on consecutive places."""
    by_cluster = free_places(fleet, candidate.tp)
    by_host: dict[str, list[Place]] = {}
    for places in by_cluster.values():
        for where in places:
            by_host.setdefault(where.host, []).append(where)
    in_order = (where for host in inventory.hosts for where in by_host.get(host.name, ()))
    return {
        (stage, replica): where
        for replica in range(candidate.dp)
        for stage, where in zip(range(candidate.pp), in_order, strict=False)
    }


def usual_placement(job: Job, fleet: Fleet, candidate: Candidate, places: dict[tuple[int, int], Place]) -> Placement:
    """The cut that goes with it, fixed or even with the remainder on the first stages, and the clusters of `places`."""
    names = [cluster.name for cluster in fleet.clusters]
    sites = tuple(
        tuple(names.index(places[stage, replica].cluster) for replica in range(candidate.dp))
        for stage in range(candidate.pp)
    )
    layers = job.parallel.layers or even_layers(job.model.num_layers, candidate.pp)
    return Placement(candidate, fleet, layers, sites)


def misfit(job: Job, placement: Placement, places: dict[tuple[int, int], Place]) -> str | None:
    """Which stage does not fit into the memory of which host, in words; None if all fit or memory is not known."""
    memory = {host.name: host.memory_bytes for cluster in placement.fleet.clusters for host in cluster.hosts}
    for (stage, _), where in sorted(places.items()):
        needed = stage_memory_bytes(job, placement.candidate, stage, placement.layers[stage])
        available = memory[where.host]
        if available is not None and needed > available:
            return f"stage {stage} needs {needed} bytes on a GPU of host {where.host}, which has {available}"
    return None
