"""Find the ranks that made a number that is not finite, after a sum over all ranks has shown one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holmes_runtime.config.rank_grid import Rank


def first_makers(stages: Mapping[Rank, int]) -> tuple[Rank, ...]:
    """Return the ranks that made it in a forward. `stages`: for each rank with one, its first stage that produced it.

    A replica's later stages only pass on the number from its first such stage.
    """
    firsts = {dp: min(stage for rank, stage in stages.items() if rank.dp_rank == dp) for dp in _replicas(stages)}
    return tuple(rank for rank, stage in stages.items() if stage == firsts[rank.dp_rank])


def last_makers(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    """Return the ranks of `ranks` that made it in a backward, which goes from the last stage to the first."""
    last = max((rank.pp_rank for rank in ranks), default=0)
    return tuple(rank for rank in ranks if rank.pp_rank == last)


def in_words(makers: Sequence[Rank], num_replicas: int) -> str:
    """Return its origin as text. It says if all replicas made one, as a single host seldom causes that."""
    first = makers[0]
    where = f"stage {first.pp_rank} of replica {first.dp_rank} (rank {first.rank} on {first.host})"
    others = len(_replicas(dict.fromkeys(makers, 0))) - 1
    if others == 0:
        return where
    if others == num_replicas - 1:
        return f"{where} and all other replicas"
    return f"{where} and {others} other replica{'s' if others > 1 else ''}"


def _replicas(ranks: Mapping[Rank, int]) -> set[int]:
    return {rank.dp_rank for rank in ranks}
