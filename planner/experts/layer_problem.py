"""The experts of one layer, to be placed on the ranks of a group by the tokens that chose them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import ceil

ExpertRanks = tuple[tuple[int, ...], ...]
"""The experts of each rank of a group, ascending; all ranks hold equally many."""

ROUNDING = 1e-9  # relative: a sum of fractions may exceed the whole number it stands for


@dataclass(frozen=True)
class LayerProblem:
    """Experts to place on `num_ranks` ranks, equally many on each of `num_hosts` hosts.

    `tokens` counts tokens by the experts that they chose. A layer's seconds are `copy_s` for each token that the
    fullest host receives (one copy each), and `row_s` for each row of the fullest rank.
    """

    num_experts: int
    num_hosts: int
    num_ranks: int
    copy_s: float
    row_s: float
    tokens: Mapping[tuple[int, ...], int]

    @property
    def experts_per_rank(self) -> int:
        """The number of experts on each rank."""
        return self.num_experts // self.num_ranks

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the trace."""
        return sum(self.tokens.values())

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """The number of rows for each expert: the tokens that chose it."""
        rows = [0] * self.num_experts
        for chosen, count in self.tokens.items():
            for expert in chosen:
                rows[expert] += count
        return tuple(rows)

    @cached_property
    def shared(self) -> list[list[int]]:
        """The number of tokens that chose both of two experts."""
        shared = [[0] * self.num_experts for _ in range(self.num_experts)]
        for chosen, count in self.tokens.items():
            for one, other in combinations(chosen, 2):
                shared[one][other] += count
                shared[other][one] += count
        return shared

    @property
    def usual(self) -> ExpertRanks:
        """The placement of engines: experts in their order."""
        size = self.experts_per_rank
        return tuple(tuple(range(first, first + size)) for first in range(0, self.num_experts, size))

    def host_of(self, rank: int) -> int:
        """Return the host of a rank; neighbouring ranks share one."""
        return rank * self.num_hosts // self.num_ranks

    def check(self, placement: ExpertRanks) -> None:
        """Assert that each expert is on one rank, and that all ranks have equally many."""
        assert [len(experts) for experts in placement] == [self.experts_per_rank] * self.num_ranks
        assert sorted(expert for experts in placement for expert in experts) == list(range(self.num_experts))

    def rank_rows(self, placement: ExpertRanks) -> list[int]:
        """Return the rows of each rank."""
        return [sum(self.rows[expert] for expert in experts) for experts in placement]

    def host_tokens(self, placement: ExpertRanks) -> list[int]:
        """Return, by host, the number of tokens that chose experts on it."""
        host = {expert: self.host_of(rank) for rank, experts in enumerate(placement) for expert in experts}
        found = [0] * self.num_hosts
        for chosen, count in self.tokens.items():
            for each in {host[expert] for expert in chosen}:
                found[each] += count
        return found

    def seconds(self, placement: ExpertRanks) -> float:
        """Return the seconds of the fullest host's copies and of the fullest rank's rows."""
        return self.copy_s * max(self.host_tokens(placement)) + self.row_s * max(self.rank_rows(placement))

    def bound_s(self) -> float:
        """Return a lower bound on the seconds of all placements."""
        return self.copy_s * -(-self.fewest_copies // self.num_hosts) + self.row_s * self._fewest_rows()

    def _fewest_rows(self) -> int:
        """Return a bound on the fullest rank's rows: the mean, or the busiest expert with the idlest others."""
        others = sum(sorted(self.rows)[: self.experts_per_rank - 1])
        return max(-(-sum(self.rows) // self.num_ranks), max(self.rows) + others)

    @cached_property
    def fewest_copies(self) -> int:
        """A lower bound on the copies of all tokens, one for each host with any of a token's experts.

        If j more of a token's experts are on the host of expert e, the token counts 1 / (1 + j) of a copy for e. Over
        the tokens of e, j adds up to the tokens that e shares with the experts on its host. That is at most its sum
        over the experts that share most with e. The sum of a convex function of j is least if all j are as equal as
        whole numbers allow.
        """
        mates = self.num_experts // self.num_hosts - 1
        copies = 0.0
        for rows, row in zip(self.rows, self.shared, strict=True):
            if rows:
                whole, more = divmod(sum(sorted(row)[self.num_experts - mates :]), rows)
                copies += (rows - more) / (1 + whole) + more / (2 + whole)
        return max(ceil(copies * (1 - ROUNDING)), self.num_tokens)


def as_placement(ranks: Sequence[Sequence[int]]) -> ExpertRanks:
    """Return the placement with the experts of each rank ascending."""
    return tuple(tuple(sorted(experts)) for experts in ranks)
