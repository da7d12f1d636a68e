"""From counts to slots: which host and slot each tasklet takes, and the rank numbers that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holmes_core.plan import PlanRank
from planner.fleet import Fleet
from planner.search import Placement


@dataclass(frozen=True)
class Place:
    """Room for one tensor group: the slots from `first_slot` on, on one host of one cluster."""

    host: str
    cluster: str
    first_slot: int
    gpus: tuple[int | None, ...]


Places = Mapping[tuple[int, int], Place]
"""The place of each (stage, replica)."""


def free_places(fleet: Fleet, tp: int) -> dict[str, list[Place]]:
    """By cluster, its places in inventory order: host by host, slot by slot."""
    return {
        cluster.name: [
            Place(host.name, cluster.name, start, host.gpus[start : start + tp])
            for host in cluster.hosts
            for start in range(0, host.num_places(tp) * tp, tp)
        ]
        for cluster in fleet.clusters
    }


def place(placement: Placement) -> dict[tuple[int, int], Place]:
    """The place of each (stage, replica).

    Stages that are in one cluster come first, in order, each taking the cluster's next places, so that data parallel
    groups sit on as few hosts as they can; stages spread over clusters take what is left, lowest replica first.
    """
    free = {name: iter(places) for name, places in free_places(placement.fleet, placement.candidate.tp).items()}
    names = [cluster.name for cluster in placement.fleet.clusters]
    taken = {}
    for stage in sorted(range(len(placement.sites)), key=lambda s: (len(set(placement.sites[s])) > 1, s)):
        for replica, cluster in enumerate(placement.sites[stage]):
            taken[stage, replica] = next(free[names[cluster]])
    return taken


def hosts_by_stage(places: Places) -> tuple[str, ...]:
    """The hosts in the order in which they first appear, stage by stage, replica by replica."""
    return tuple(dict.fromkeys(places[key].host for key in sorted(places)))


def number_ranks(places: Places, host_order: Sequence[str], tp: int) -> tuple[PlanRank, ...]:
    """All ranks, numbered as torchrun does: hosts in `host_order`, and on each its slots in order."""
    position = {host: index for index, host in enumerate(host_order)}
    by_slot = sorted(places, key=lambda key: (position[places[key].host], places[key].first_slot))
    ranks: list[PlanRank] = []
    num_local: dict[str, int] = {}
    for (stage, replica), shard in _shards(by_slot, tp):
        where = places[stage, replica]
        local_rank = num_local.get(where.host, 0)
        num_local[where.host] = local_rank + 1
        ranks.append(
            PlanRank(
                rank=len(ranks),
                host=where.host,
                cluster=where.cluster,
                local_rank=local_rank,
                gpu=where.gpus[shard],
                pp_rank=stage,
                dp_rank=replica,
                tp_rank=shard,
            )
        )
    return tuple(ranks)


def _shards(keys: Sequence[tuple[int, int]], tp: int) -> Iterator[tuple[tuple[int, int], int]]:
    return ((key, shard) for key in keys for shard in range(tp))
