"""From classes to slots: the host and slot of each tasklet, and the resulting rank numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from holmes_core.records.job import Job
from holmes_core.records.plan import PlanRank
from planner.problem.coefficients import Coefficients
from planner.problem.fleet import Fleet, FleetHost
from planner.problem.group_places import check_placed_groups, misplaced_in_stage
from planner.problem.problem import Problem
from planner.search.placement import Placement


@dataclass(frozen=True)
class GroupSlot:
    """Room for one tensor group: the slots from `first_slot` on, on one host of one cluster."""

    host: str
    cluster: str
    first_slot: int
    gpus: tuple[int | None, ...]


GroupSlots = Mapping[tuple[int, int], GroupSlot]
"""The group slot of each (stage, replica)."""


def group_slots_of(host: FleetHost, tp: int) -> list[GroupSlot]:
    """Return the group slots of one host, in order."""
    starts = range(0, host.num_group_slots(tp) * tp, tp)
    return [GroupSlot(host.name, host.hardware.cluster, start, host.gpus[start : start + tp]) for start in starts]


def is_aligned(placement: Placement, coeffs: Coefficients) -> bool:
    """Return True if no stage begins inside a host that another one uses, as the candidate's price assumes.

    False if its classes hold the stages only together with others, which a placement in one cluster cannot use.
    """
    whole = Counter(row[0] for row in placement.sites if len(set(row)) == 1)
    return coeffs.aligned and all(count <= coeffs.most_stages[c] for c, count in whole.items())


def assign_hosts(placement: Placement, fleet: Fleet, aligned: bool) -> dict[tuple[int, int], GroupSlot]:
    """Return the group slot of each (stage, replica).

    Stages in one class come first, in order. Each takes the class's next slots, so that data parallel groups use as few
    hosts as possible. If `aligned`, no stage begins inside a host in which it would not end. Stages over several
    classes take the remaining slots, lowest replica first.
    """
    tp, dp = placement.candidate.tp, placement.candidate.dp
    free = [_Free(each.hosts, tp, dp if aligned else 1) for each in fleet.classes]
    taken: dict[tuple[int, int], GroupSlot] = {}
    for stage, row in enumerate(placement.sites):
        if len(set(row)) == 1:
            for replica, where in enumerate(free[row[0]].take_stage(dp)):
                taken[stage, replica] = where
    for stage, row in enumerate(placement.sites):
        if len(set(row)) > 1:
            for replica, c in enumerate(row):
                taken[stage, replica] = free[c].take_left()
    return taken


def assign(problem: Problem, placement: Placement) -> dict[tuple[int, int], GroupSlot]:
    """Return the group slot of each (stage, replica), with stages aligned to hosts if the placement allows it."""
    return assign_hosts(placement, problem.fleet, is_aligned(placement, problem.coefficients(placement.candidate)))


def keeps_groups(problem: Problem, placement: Placement) -> bool:
    """Return True if hosts and clusters hold all ranks that share experts or sequences as priced.

    Rail matching moves replicas only inside hosts and does not change this.
    """
    job, candidate = problem.job, placement.candidate
    if job.ep == job.cp == 1:
        return True
    known, key = problem.keeps_groups, (candidate, placement.sites)
    if key not in known:
        taken = assign(problem, placement)
        stages = (
            [taken[stage, replica] for replica in range(candidate.dp) for _ in range(candidate.tp)]
            for stage in range(candidate.pp)
        )
        known[key] = not any(misplaced_in_stage(job, candidate.tp, held) for held in stages)
    return known[key]


def check_kept_groups(problem: Problem, placement: Placement) -> None:
    """Raise HolmesError, naming the ranks, unless the placement `keeps_groups`."""
    taken = assign(problem, placement)
    check_placed_groups(problem.job, number_ranks(problem.job, taken, hosts_by_stage(taken), placement.candidate.tp))


class _Free:
    """The free group slots of one class. `together` of them should share a host, or begin at its boundary."""

    def __init__(self, hosts: Sequence[FleetHost], tp: int, together: int) -> None:
        self._hosts = [group_slots_of(host, tp) for host in hosts]
        self._together = min(together, max(map(len, self._hosts)))
        self._at = self._left_at = 0

    def take_stage(self, count: int) -> list[GroupSlot]:
        """Return the next `count` group slots."""
        found: list[GroupSlot] = []
        while len(found) < count:
            host = self._hosts[self._at]
            too_few = not found and len(host) < self._together
            if not host or too_few:
                self._at += 1
                continue
            found.append(host.pop(0))
        return found

    def take_left(self) -> GroupSlot:
        """Return any remaining group slot, from the first host on."""
        while not self._hosts[self._left_at]:
            self._left_at += 1
        return self._hosts[self._left_at].pop(0)


def hosts_by_stage(group_slots: GroupSlots) -> tuple[str, ...]:
    """Return the hosts in the order in which they first appear, stage by stage, replica by replica."""
    return tuple(dict.fromkeys(group_slots[key].host for key in sorted(group_slots)))


def number_ranks(job: Job, group_slots: GroupSlots, host_order: Sequence[str], tp: int) -> tuple[PlanRank, ...]:
    """Return all ranks, numbered as torchrun does: hosts in `host_order`, and on each host its slots in order.

    Other trainers form groups by number, so their ranks count up by stage, replica and shard (engine_mesh.py). Local
    ranks follow the numbers; torchrun agrees if the ranks of each host are consecutive.
    """
    position = {host: index for index, host in enumerate(host_order)}

    def by_host(tasklet: tuple[int, int]) -> tuple[int, int]:
        return position[group_slots[tasklet].host], group_slots[tasklet].first_slot

    tasklets = sorted(group_slots, key=by_host) if job.is_bundled else sorted(group_slots)
    ranks: list[PlanRank] = []
    num_local: dict[str, int] = {}
    for (stage, replica), shard in product(tasklets, range(tp)):
        where = group_slots[stage, replica]
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
