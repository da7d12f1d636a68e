"""A placement: the class of hosts for each replica of each stage, with the numbers of layers and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_core.records.job import Job
from holmes_core.records.plan import Crossing
from planner.problem.candidates import Candidate
from planner.problem.fleet import Fleet
from planner.search.closed_form import SiteBlock


@dataclass(frozen=True)
class Placement:
    """`layers` by stage; `sites[stage][replica]`, the index of its class in the fleet; `microbatches` by replica."""

    candidate: Candidate
    layers: tuple[int, ...]
    sites: tuple[tuple[int, ...], ...]
    microbatches: tuple[int, ...]

    def crossing(self, fleet: Fleet) -> Crossing:
        """Return the traffic between clusters: nothing, the pipeline's messages, gradients, or both."""
        clusters = [[fleet.classes[c].cluster for c in dict.fromkeys(row)] for row in self.sites]
        if len({name for row in clusters for name in row}) == 1:
            return "nothing"
        if all(len(set(row)) == 1 for row in clusters):
            return "pipeline"
        columns = dict.fromkeys(zip(*self.sites, strict=True))
        stays = all(len({fleet.classes[c].cluster for c in column}) == 1 for column in columns)
        return "data" if stays else "both"


@dataclass(frozen=True)
class PricedPlacement:
    """A placement and its closed-form seconds."""

    objective_s: float
    placement: Placement


def even_shares(total: int, parts: int) -> tuple[int, ...]:
    """Return `total` layers or micro-batches over `parts` as evenly as possible, the remainder on the first ones."""
    return tuple(total // parts + (1 if part < total % parts else 0) for part in range(parts))


def take_surplus(layers: list[int], stages: Sequence[int], surplus: int) -> int:
    """Take layers from the fullest of `stages`, one from each in that order, and return the surplus that is left.

    Changes `layers`. Every stage keeps one.
    """
    while surplus and (fullest := max([layers[s] for s in stages])) > 1:
        for s in stages:
            if layers[s] == fullest and surplus:
                layers[s] -= 1
                surplus -= 1
    return surplus


def usual_cut(job: Job, pp: int) -> tuple[int, ...]:
    """Return the layers by pipeline rank: the fixed cut, with all chunks of a rank together, or an even one."""
    fixed = job.parallel.layers
    if fixed is None:
        return even_shares(job.model.num_layers, pp)
    return tuple(sum(fixed[stage::pp]) for stage in range(pp))


def from_blocks(
    candidate: Candidate,
    total_microbatches: int,
    blocks: Sequence[SiteBlock],
    replicas: Sequence[Sequence[int]] | None = None,
) -> Placement:
    """Return the placement of stages in blocks; `replicas`, by stage and class, divides stages over several classes."""
    layers = tuple(held for block in blocks for held in block.layers)
    if replicas is None:
        assert all(len(block.site) == 1 for block in blocks)
        sites = tuple((block.site[0],) * candidate.dp for block in blocks for _ in block.layers)
    else:
        sites = tuple(tuple(c for c, count in enumerate(row) for _ in range(count)) for row in replicas)
    return Placement(candidate, layers, sites, even_shares(total_microbatches, candidate.dp))
