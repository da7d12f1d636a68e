"""The ranks of a run by tensor, data and pipeline coordinates, and the groups that follow from them.

Free of torch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Literal

from holmes_runtime.config.checks import check
from holmes_runtime.config.codec import Codec

Axis = Literal[
    "tp", "cp", "dp", "dp_across", "ep", "expert_dp", "expert_dp_across", "tied", "pp_forward", "pp_backward"
]
DataParallel = Literal["flat", "hierarchical"]
"""Gradients are summed over all replicas at once, or first inside clusters and then across them."""
NetName = Literal["IB", "Socket", "AWS Libfabric", "Libfabric"]
"""NCCL's names of networks: its own transports ("IB" covers RoCE), and the two names that aws-ofi-nccl has used."""
GroupKey = tuple[Axis, tuple[int, ...]]
EDGE_AXES: tuple[Axis, ...] = ("pp_forward", "pp_backward")
REPLICA_AXES: tuple[Axis, ...] = ("dp", "dp_across")
EXPERT_AXES: tuple[Axis, ...] = ("expert_dp", "expert_dp_across")
"""The same among replicas with the same experts, for the gradients and the weights of experts."""


@dataclass(frozen=True)
class Rank:
    """A global rank with its host, its cluster, and its coordinates in the pipeline, data and tensor axes."""

    rank: int
    host: str
    cluster: str
    pp_rank: int
    dp_rank: int
    tp_rank: int


@dataclass(frozen=True)
class Group:
    """One process group: `interfaces[i]` is the network interface of `ranks[i]`.

    Axis `tp` has the shards of one stage's layers. `cp` has the replicas of one shard that share each sequence. `dp`
    has the replicas of one shard; in hierarchical data parallelism it has only the replicas in one cluster, and
    `dp_across` has one replica of each cluster. `ep` has one shard of each replica that shares a stage's experts; they
    send tokens to one another. `expert_dp` and `expert_dp_across` are `dp` and `dp_across` among replicas with the same
    experts. `tied` has the two ranks that update copies of one shard of the token table. `pp_forward` and `pp_backward`
    have the two ranks of one pipeline edge, the rank of the earlier stage first, for activations and for gradients.

    `net_name` is NCCL's network module, used on device "cuda" only; None lets NCCL choose. Gloo opens `streams`
    connections to each other member, and an edge's message uses all of them. `codec` packs the messages of an edge; all
    other groups send values as they are.
    """

    name: str
    axis: Axis
    ranks: tuple[int, ...]
    interfaces: tuple[str, ...]
    net_name: NetName | None
    streams: int
    codec: Codec

    def __post_init__(self) -> None:
        several = len(self.ranks) >= 2 and len(set(self.ranks)) == len(self.ranks)
        check("ranks", self.ranks, "must be two or more distinct ranks", several)
        rule = f"must name one interface for each of {len(self.ranks)} ranks"
        check("interfaces", self.interfaces, rule, len(self.interfaces) == len(self.ranks))
        check("streams", self.streams, "must be positive", self.streams > 0)
        rule = f"must be none but on the edges of a pipeline, not on axis {self.axis}"
        check("codec", self.codec, rule, self.codec == "none" or self.axis in EDGE_AXES)

    @property
    def key(self) -> GroupKey:
        """The unique key of the group."""
        return group_key(self.axis, self.ranks)

    def interface_of(self, rank: int) -> str:
        """Return the network interface of `rank` in this group. Raises ValueError if the rank is not a member."""
        return self.interfaces[self.ranks.index(rank)]


def group_key(axis: Axis, ranks: Iterable[int]) -> GroupKey:
    """Return a group's unique key. An edge has the ranks of its (earlier, later) stage, others their sorted members."""
    return (axis, tuple(ranks) if axis in EDGE_AXES else tuple(sorted(ranks)))


@dataclass(frozen=True)
class RankGrid:
    """All ranks, one at each of the pp x dp x tp coordinates. Raises ValueError naming the key if they are not.

    The pipeline `is_ring` if a rank holds several stages: then the last rank sends on to the first. Hierarchical data
    parallelism needs the same number of a stage's replicas in each of its clusters. If the model `is_tied`, both the
    first and the last pipeline rank hold the token table. `cp` neighbouring replicas, all in one cluster, share each
    sequence: replica i has part i % cp. `ep` ranks of a stage share its experts: they are ep / tp neighbouring
    replicas, all in one cluster, with all of their tensor shards. `ep` is 1 if each replica has all experts.
    """

    pp: int
    dp: int
    tp: int
    is_ring: bool
    is_tied: bool
    data_parallel: DataParallel
    ranks: tuple[Rank, ...]
    cp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        check("cp", self.cp, f"must be a divisor of dp {self.dp}", self.cp > 0 and self.dp % self.cp == 0)
        numbers, size = sorted(rank.rank for rank in self.ranks), self.pp * self.dp * self.tp
        check("ranks", numbers, f"must be 0..{size - 1}, each once", numbers == list(range(size)))
        coordinates = [(rank.pp_rank, rank.dp_rank, rank.tp_rank) for rank in self.ranks]
        held, sizes = Counter(coordinates), (self.pp, self.dp, self.tp)
        rule = f"(pp_rank, dp_rank, tp_rank) must be within {sizes} and held once"
        for position, found in enumerate(coordinates):
            inside = all(0 <= at < size for at, size in zip(found, sizes, strict=True))
            check(f"ranks[{position}]", found, rule, inside and held[found] == 1)
        self._check_expert_groups()
        for index, me in enumerate(self.ranks if self.cp > 1 else ()):
            self._check_in_one_cluster(index, self.sequence(me), "a sequence")
        if self.data_parallel == "hierarchical":
            self._check_clusters()

    def _check_expert_groups(self) -> None:
        rule = f"must be 1, or a multiple of tp {self.tp} that divides dp * tp = {self.dp * self.tp}"
        check("ep", self.ep, rule, self.ep == 1 or (self.ep % self.tp == 0 and self.dp * self.tp % self.ep == 0))
        for index, me in enumerate(self.ranks if self.expert_replicas > 1 else ()):
            self._check_in_one_cluster(index, self.expert_peers(me), "experts")
            parts = {self.expert_part(self.rank(number)) for number in self.shards(me)}
            rule = "must have its tensor shards in the same order as the neighbours that share its experts"
            check(f"ranks[{index}]", me.rank, rule, len(parts) == 1)

    def _check_in_one_cluster(self, index: int, members: tuple[int, ...], shared: str) -> None:
        clusters = sorted({self.rank(number).cluster for number in members})
        rule = f"must be one for the ranks {members} that share {shared}, and they are in {' and '.join(clusters)}"
        check(f"ranks[{index}].cluster", self.ranks[index].cluster, rule, len(clusters) == 1)

    def _check_clusters(self) -> None:
        for pp_rank, tp_rank in product(range(self.pp), range(self.tp)):
            clusters = self._by_cluster(self.replicas(self.at(pp_rank, 0, tp_rank)))
            sizes = {name: len(ranks) for name, ranks in clusters.items()}
            held = ", ".join(f"{size} in {name}" for name, size in sizes.items())
            rule = f"must be flat unless each cluster has as many replicas; of pipeline rank {pp_rank} there are {held}"
            check("data_parallel", self.data_parallel, rule, len(set(sizes.values())) == 1)

    @cached_property
    def _by_coordinates(self) -> dict[tuple[int, int, int], Rank]:
        return {(rank.pp_rank, rank.dp_rank, rank.tp_rank): rank for rank in self.ranks}

    @cached_property
    def _by_number(self) -> dict[int, Rank]:
        return {rank.rank: rank for rank in self.ranks}

    def at(self, pp_rank: int, dp_rank: int, tp_rank: int) -> Rank:
        """Return the rank at these coordinates. Raises KeyError if there is none."""
        return self._by_coordinates[pp_rank, dp_rank, tp_rank]

    def rank(self, number: int) -> Rank:
        """Return the host and coordinates of global rank `number`. Raises KeyError if there is no such rank."""
        if number not in self._by_number:
            raise KeyError(f"the run has {len(self.ranks)} ranks, no rank {number}")
        return self._by_number[number]

    def pipeline(self, dp_rank: int, tp_rank: int) -> tuple[int, ...]:
        """Return the global ranks of one shard of replica `dp_rank`'s pipeline, in pipeline order."""
        return tuple(self.at(pp_rank, dp_rank, tp_rank).rank for pp_rank in range(self.pp))

    def replicas(self, me: Rank) -> tuple[int, ...]:
        """Return the global ranks that hold the same part of the model as `me`."""
        return tuple(self.at(me.pp_rank, dp_rank, me.tp_rank).rank for dp_rank in range(self.dp))

    def _by_cluster(self, replicas: Iterable[int]) -> dict[str, tuple[int, ...]]:
        """Return `replicas` by cluster, in rank order, the order in which torch numbers the members of a group."""
        found: dict[str, list[int]] = {}
        for number in sorted(replicas):
            found.setdefault(self.rank(number).cluster, []).append(number)
        return {cluster: tuple(numbers) for cluster, numbers in found.items()}

    def exchanges(self, me: Rank) -> dict[Axis, tuple[int, ...]]:
        """Return, by axis, the ranks that share gradients and weights with `me`. Axes without others are left out.

        Flat: all replicas. Hierarchical: the replicas in its cluster, and then the replica at its position in each
        cluster.
        """
        return self._levels(me, self.replicas(me), REPLICA_AXES)

    @property
    def expert_replicas(self) -> int:
        """The number of neighbouring replicas that share a stage's experts."""
        return max(1, self.ep // self.tp)

    def expert_peers(self, me: Rank) -> tuple[int, ...]:
        """Return the global ranks that share the experts of `me`'s layers.

        They are in rank order, as torch numbers the members of a group.
        """
        size = self.expert_replicas
        first = me.dp_rank // size * size
        return tuple(sorted(self.at(me.pp_rank, dp_rank, me.tp_rank).rank for dp_rank in range(first, first + size)))

    def expert_part(self, me: Rank) -> int:
        """Return the index of the part of the experts that `me` has."""
        return self._expert_parts[me.rank]

    @cached_property
    def _expert_parts(self) -> dict[int, int]:
        return {me.rank: self.expert_peers(me).index(me.rank) for me in self.ranks}

    @cached_property
    def _with_same_experts(self) -> dict[tuple[int, int, int], tuple[int, ...]]:
        """The ranks that have a part of the experts, by pipeline rank, tensor rank and part, in replica order."""
        found = defaultdict[tuple[int, int, int], list[int]](list)
        for me in sorted(self.ranks, key=lambda me: me.dp_rank):
            found[me.pp_rank, me.tp_rank, self.expert_part(me)].append(me.rank)
        return {key: tuple(numbers) for key, numbers in found.items()}

    def expert_exchanges(self, me: Rank) -> dict[Axis, tuple[int, ...]]:
        """Return `exchanges` among the replicas with the experts of `me`; empty if each replica has all experts."""
        if self.expert_replicas == 1:
            return {}
        alike = self._with_same_experts[me.pp_rank, me.tp_rank, self.expert_part(me)]
        return self._levels(me, alike, EXPERT_AXES)

    def _levels(self, me: Rank, replicas: tuple[int, ...], axes: tuple[Axis, ...]) -> dict[Axis, tuple[int, ...]]:
        """Return, by axis, the ranks that `me` sums with: all `replicas`, or first in its cluster and then across."""
        levels = [replicas]
        if self.data_parallel == "hierarchical":
            clusters = self._by_cluster(replicas)
            position = clusters[me.cluster].index(me.rank)
            levels = [clusters[me.cluster], tuple(ranks[position] for ranks in clusters.values())]
        return {axis: ranks for axis, ranks in zip(axes, levels, strict=False) if len(ranks) > 1}

    def position(self, me: Rank) -> int:
        """Return the position of `me` among its replicas: the index of its shard of gradients and optimizer states."""
        position = 0
        for ranks in self.exchanges(me).values():
            position = position * len(ranks) + sorted(ranks).index(me.rank)
        return position

    @cached_property
    def _tied_pairs(self) -> dict[int, tuple[int, int]]:
        """The (first stage's, last stage's) ranks of each group `tied`, by member.

        Both own the same shard of their table, so only shards are sent, after they are summed over replicas.
        """
        if not self.is_tied or self.pp == 1:
            return {}
        first, last = (
            {(me.tp_rank, self.position(me)): me.rank for me in self.ranks if me.pp_rank == end}
            for end in (0, self.pp - 1)
        )
        pairs = [(number, last[piece]) for piece, number in first.items()]
        return {number: pair for pair in pairs for number in pair}

    def tied(self, me: Rank) -> tuple[int, int] | None:
        """Return the (first stage's, last stage's) ranks for the tied shard of `me`; None if it has none."""
        return self._tied_pairs.get(me.rank)

    def shards(self, me: Rank) -> tuple[int, ...]:
        """Return the global ranks that share the layers of `me`."""
        return tuple(self.at(me.pp_rank, me.dp_rank, tp_rank).rank for tp_rank in range(self.tp))

    def sequence(self, me: Rank) -> tuple[int, ...]:
        """Return the global ranks that have the parts of `me`'s sequences, in order of the parts."""
        first = me.dp_rank - me.dp_rank % self.cp
        return tuple(self.at(me.pp_rank, first + part, me.tp_rank).rank for part in range(self.cp))

    def edge_before(self, me: Rank) -> tuple[int, int] | None:
        """Return the ranks (earlier stage, `me`) of the edge that brings activations; None for the first of a chain."""
        if self.pp == 1 or (me.pp_rank == 0 and not self.is_ring):
            return None
        return self.at((me.pp_rank - 1) % self.pp, me.dp_rank, me.tp_rank).rank, me.rank

    def edge_after(self, me: Rank) -> tuple[int, int] | None:
        """Return the ranks (`me`, later stage) of the edge that takes activations; None for the last of a chain."""
        if self.pp == 1 or (me.pp_rank == self.pp - 1 and not self.is_ring):
            return None
        return me.rank, self.at((me.pp_rank + 1) % self.pp, me.dp_rank, me.tp_rank).rank

    def check_groups(self, groups: Sequence[Group]) -> None:
        """Raise ValueError naming the group unless `groups` are exactly the groups in which the ranks communicate."""
        names = [group.name for group in groups]
        check("groups", names, "must have distinct names", len(set(names)) == len(names))
        missing = self._needed_groups()
        for position, group in enumerate(groups):
            rule = (
                "must be the shards or the replicas of one stage, replicas that share a sequence, replicas with the "
                "same or with all of its experts, two copies of one piece of a tied table, or two neighbouring stages "
                "of one replica, "
                f"the earlier first, in one group only ({group.axis}, data parallelism {self.data_parallel})"
            )
            check(f"groups[{position}].ranks", group.ranks, rule, group.key in missing)
            missing.remove(group.key)
        check("groups", f"none for {sorted(missing)}", "must hold every group of the plan", not missing)

    def _needed_groups(self) -> set[GroupKey]:
        """Return the keys of all groups in which this run communicates."""
        needed: set[GroupKey] = set()
        for me in self.ranks:
            if self.tp > 1:
                needed.add(group_key("tp", self.shards(me)))
            if self.cp > 1:
                needed.add(group_key("cp", self.sequence(me)))
            exchanges = {**self.exchanges(me), **self.expert_exchanges(me)}
            needed.update(group_key(axis, ranks) for axis, ranks in exchanges.items())
            if self.expert_replicas > 1:
                needed.add(group_key("ep", self.expert_peers(me)))
            tied = self.tied(me)
            if tied is not None:
                needed.add(group_key("tied", tied))
            edge = self.edge_after(me)
            if edge is not None:
                needed.update([("pp_forward", edge), ("pp_backward", edge)])
        return needed
