"""Places of groups of ranks that share a layer's experts or a sequence, and communicate in every layer.

A group is several consecutive replicas of a stage with all of their tensor shards. Either a host holds whole groups, or
a group holds whole hosts. A group that shares sequences is in one cluster. Groups that share experts are all in one
cluster for each stage. Megatron-Core and torchtitan make the same groups of RANK (parallel_state.py, parallel_dims.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import lcm
from typing import Protocol, TypeVar

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.job import Job
from holmes_core.records.plan import PlanRank


def takes_groups(job: Job, tp: int, dp: int) -> bool:
    """Return True if groups of the job's ep and cp divide these degrees; `dp` counts all replicas."""
    return has_whole_groups(job, tp) and tp * dp % job.ep == 0 and dp % job.cp == 0


def has_whole_groups(job: Job, tp: int) -> bool:
    """Return True if a replica's tensor shards are all in one group, or if the model needs no such groups."""
    return job.model.experts is None or (job.is_bundled and job.ep == 1) or job.ep % tp == 0


def replicas_together(job: Job, tp: int) -> int:
    """Return the number of consecutive replicas that must stay together."""
    return lcm(job.cp, max(1, job.ep // tp))


def is_aligned(num_slots: int, size: int) -> bool:
    """Return True if a host of `num_slots` slots holds whole groups of `size` ranks, or a group holds whole hosts."""
    return num_slots % size == 0 or size % num_slots == 0


def check_groups_fit(job: Job, slots: Iterable[int]) -> None:
    """Raise HolmesError (wrong usage) if a host neither holds whole groups nor is whole in one; `slots` are by host.

    Groups that share sequences are larger by the tensor degree, which the planner may choose.
    """
    for key, size in (("ep", job.ep), ("cp", job.cp * (job.parallel.tp or 1) if job.cp > 1 else 1)):
        wrong = sorted(number for number in slots if not is_aligned(number, size))
        if wrong:
            fixed = getattr(job.parallel, key) or 1
            what = f"{key} {fixed}" + (f" times tp {job.parallel.tp}" if size != fixed else "")
            raise HolmesError(
                f"job: parallel.{what} neither divides the {wrong[0]} slots of a host nor is a multiple of them",
                f"choose parallel.{key} so that {size} becomes a divisor or a multiple of the slots of every host, or "
                "leave it out",
            )


def check_placed_groups(job: Job, ranks: Sequence[PlanRank]) -> None:
    """Raise HolmesError if ranks that share experts or a sequence are misplaced.

    They must be in one cluster, and not on parts of several hosts.
    """
    for key, shared, other in (("ep", "a stage's experts", "cp"), ("cp", "a sequence", "ep")):
        group = misplaced_group(job.with_parallel(**{other: None}), ranks)
        if group:
            places = " and ".join(dict.fromkeys(f"{rank.host} of {rank.cluster}" for rank in group))
            raise HolmesError(
                f"job: parallel.{key} is {getattr(job.parallel, key) or 1}, but the best placement has ranks "
                f"{group[0].rank} to {group[-1].rank}, which share {shared}, on {places}: a group must have whole "
                "hosts or a part of one, in one cluster, since its ranks communicate in every layer",
                "leave parallel.pp and dp out, or set them so that the replicas of a stage fit this way",
                ANSWER_IS_NO,
            )


def misplaced_group(job: Job, ranks: Sequence[PlanRank]) -> tuple[PlanRank, ...]:
    """Return the first group of ranks, or stage, that is not placed as priced; empty if there is none."""
    if job.ep == job.cp == 1:
        return ()
    stages: dict[int, list[PlanRank]] = {}
    for rank in sorted(ranks, key=lambda rank: (rank.dp_rank, rank.tp_rank) if job.is_bundled else (rank.rank, 0)):
        stages.setdefault(rank.pp_rank, []).append(rank)
    tp = 1 + max(rank.tp_rank for rank in ranks)
    return next((group for held in stages.values() if (group := misplaced_in_stage(job, tp, held))), ())


class PlaceOfRank(Protocol):
    """The place of a rank."""

    @property
    def host(self) -> str:
        """Return the name of its host."""

    @property
    def cluster(self) -> str:
        """Return the name of its cluster."""


P = TypeVar("P", bound=PlaceOfRank)


def misplaced_in_stage(job: Job, tp: int, held: Sequence[P]) -> tuple[P, ...]:
    """Return the first misplaced group of a stage, or the whole stage, by its ranks' places; empty if there is none."""
    if job.ep > 1 and len({each.cluster for each in held}) > 1:
        return tuple(held)
    of_host = Counter(each.host for each in held)
    for size in (job.ep, job.cp * tp if job.cp > 1 else 1):
        for first in range(0, len(held) if size > 1 else 0, size):
            group = held[first : first + size]
            hosts = Counter(each.host for each in group)
            parts = len(hosts) > 1 and any(count < of_host[host] for host, count in hosts.items())
            if parts or len({each.cluster for each in group}) > 1:
                return tuple(group)
    return ()
