"""Ways to divide a batch among replicas: the number of replicas and the size of their micro-batches.

The micro-batch size divides the batch. The number of replicas need not: each runs the ceiling or the floor of the mean
number of micro-batches. If fewer replicas give the busiest one no more micro-batches, the smaller number is as good.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from holmes_core.records.job import Job
from planner.cost.engines import engine_of

MAX_SAMPLES = 64  # of a micro-batch, unless fixed: no published run gains from more
MAX_REPLICAS = 64  # above this, only the numbers that fill clusters are tried, not all of them
MAX_KINDS = 3  # kinds of slots; up to this number, replicas are tried on every subset of the kinds


class ClassRoom(NamedTuple):
    """Room for tensor groups on the hosts of one class in one cluster. Slots of one `kind` are equally fast."""

    cluster: str
    kind: object
    group_slots: int


class BatchShares:
    """Numbers of replicas and micro-batch sizes that divide a job's batch among `num_slots` slots."""

    def __init__(self, job: Job, num_slots: int) -> None:
        fixed, self._batch, self._num_slots = job.parallel, job.batch_parts, num_slots
        free = range(1, min(MAX_SAMPLES, job.global_batch_size) + 1)
        sizes = (fixed.micro_batch_size,) if fixed.micro_batch_size else free
        self._sizes = [size for size in sizes if job.global_batch_size % size == 0]
        self._fixed_dp = job.fixed_dp
        # Replicas that share weights run equally many micro-batches; interleaving runs rounds of pp micro-batches.
        self._in_rounds = (fixed.chunks or 1) > 1 or fixed.schedule == "interleaved"
        self._must_divide = not engine_of(job).unequal_replicas or job.zero == 3 or self._in_rounds
        totals = {size: self._batch // size for size in self._sizes}
        self._even = {size: [n for n in range(1, min(m, num_slots) + 1) if m % n == 0] for size, m in totals.items()}

    def of(self, classes: Sequence[ClassRoom], pp: int) -> list[tuple[int, int]]:
        """Return the (dp, micro-batch size) pairs for which pipelines of `pp` tensor groups have slots, ascending.

        For large fleets with large batches, a dp that does not divide the batch is taken only if it fills some of the
        clusters. On all fleets, the smallest dp that is as good is taken.
        """
        most = sum(each.group_slots for each in classes) // pp
        if self._fixed_dp is not None:
            dp = self._fixed_dp
            fixed = ((dp, size) for size in self._sizes if dp <= most and dp * size <= self._batch)
            return [each for each in fixed if self._may_run(*each, pp)]
        found = {(dp, size) for size, even in self._even.items() for dp in even[: bisect_right(even, most)]}
        if self._in_rounds:
            found = {each for each in found if self._may_run(*each, pp)}
        if not self._must_divide:
            any_number = min(self._num_slots, self._batch) <= MAX_REPLICAS
            rooms = range(1, most + 1) if any_number else _rooms(classes, pp)
            found |= {(least_as_good(self._batch // size, dp), size) for dp in rooms for size in self._sizes}
            whole = _replicas_of_kinds(classes, pp)
            found |= {(dp, size) for dp in whole for size in self._sizes if dp * size <= self._batch}
        return sorted(found)

    def _may_run(self, dp: int, size: int, pp: int) -> bool:
        """Return True if every replica can run the number of micro-batches that falls to it."""
        count, rest = divmod(self._batch, dp * size)
        return not (self._must_divide and rest) and not (self._in_rounds and count % pp)


def least_as_good(total: int, dp: int) -> int:
    """Return the fewest replicas whose busiest one runs no more of `total` micro-batches than with `dp` replicas."""
    return -(-total // -(-total // dp))


def _rooms(classes: Sequence[ClassRoom], pp: int) -> set[int]:
    """Return the largest numbers of replicas of `pp` stages that fit: with each stage inside one of the n largest
    clusters, for every n, and with each replica inside one cluster of any size."""
    slots: Counter[str] = Counter()
    for each in classes:
        slots[each.cluster] += each.group_slots
    sizes = sorted(slots.values(), reverse=True)
    inside = {_most_inside(sizes[:count], pp) for count in range(1, len(sizes) + 1)}
    return (inside | {sum(each // pp for each in sizes)}) - {0}


def _most_inside(slots: Sequence[int], pp: int) -> int:
    """Return the largest number of replicas such that each of their `pp` stages fits in one cluster; 0 for none."""
    return bisect_left(range(1, sum(slots) // pp + 1), True, key=lambda dp: sum(each // dp for each in slots) < pp)


def _replicas_of_kinds(classes: Sequence[ClassRoom], pp: int) -> set[int]:
    """Return the numbers of replicas that fit on subsets of the kinds of slots, each replica in one class.

    Empty for one kind. If speeds differ, fast replicas run more micro-batches, so every additional replica may help.
    """
    rooms: Counter[object] = Counter()
    for each in classes:
        rooms[each.kind] += each.group_slots // pp
    if len(rooms) == 1:
        return set()
    sizes = range(1, len(rooms) + 1) if len(rooms) <= MAX_KINDS else (len(rooms),)
    return {sum(chosen) for size in sizes for chosen in combinations(rooms.values(), size)} - {0}
