"""The groups of clusters that may form islands, and the batch of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from holmes_core.records.job import Job

MAX_JOINED = 3  # clusters from which several may form one island together
MAX_LEFT_OUT = 5  # clusters: with more, at most one is left out

Grouping = tuple[tuple[str, ...], ...]
"""The clusters of each island."""


def groupings(clusters: Sequence[str]) -> Iterator[Grouping]:
    """Yield the ways to form two or more islands: first one per cluster, then with clusters left out or joined."""
    least = 2 if len(clusters) <= MAX_LEFT_OUT else max(2, len(clusters) - 1)
    for size in range(len(clusters), least - 1, -1):
        for some in combinations(clusters, size):
            yield tuple((name,) for name in some)
            if len(clusters) <= MAX_JOINED and size > 2:
                yield from (joined for joined in _partitions(some) if 1 < len(joined) < size)


def _partitions(clusters: Sequence[str]) -> Iterator[Grouping]:
    if len(clusters) == 1:
        yield ((clusters[0],),)
        return
    for rest in _partitions(clusters[1:]):
        yield ((clusters[0],), *rest)
        for at, group in enumerate(rest):
            yield (*rest[:at], (clusters[0], *group), *rest[at + 1 :])


def island_batch(job: Job, num_islands: int) -> int:
    """Return an island's samples per step: its share of the job's batch, in whole micro-batches."""
    size = job.parallel.micro_batch_size or 1
    return job.global_batch_size // num_islands // size * size
