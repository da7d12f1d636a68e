"""Local search: pairs of experts swap places while a layer's seconds fall.

The tokens of an expert are the bits of one integer, and so are a host's. This makes a swap cheap to try.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from planner.experts.layer_problem import ExpertRanks, LayerProblem, as_placement
from planner.time_left import TimeLeft

MAX_ROUNDS = 50  # over all pairs; searches of 128 and 256 experts ended after 5 to 15
SLACK = 1e-12  # relative: smaller changes of seconds are rounding errors


def balanced(problem: LayerProblem) -> ExpertRanks:
    """Return experts assigned from the busiest on, each to the idlest rank with room."""
    return as_placement(_given_out(problem, range(problem.num_experts), problem.num_ranks))


def gathered(problem: LayerProblem) -> ExpertRanks:
    """Return hosts filled one by one, each with the experts that tokens choose most often together with those on it.

    Tokens that two experts share count less if the new one is busy anyway.
    """
    free, ranks = set(range(problem.num_experts)), list[list[int]]()
    for _ in range(problem.num_hosts):
        held, shared = list[int](), [0] * problem.num_experts
        while len(held) < problem.num_experts // problem.num_hosts:
            expert = min((-shared[e] / max(1, problem.rows[e]) ** 0.5, -problem.rows[e], e) for e in free)[2]
            held.append(expert)
            free.remove(expert)
            shared = [sum(pair) for pair in zip(shared, problem.shared[expert], strict=True)]
        ranks += _given_out(problem, held, problem.num_ranks // problem.num_hosts)
    return as_placement(ranks)


def _given_out(problem: LayerProblem, experts: Iterable[int], num_ranks: int) -> list[list[int]]:
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    rows = [0] * num_ranks
    for expert in sorted(experts, key=lambda expert: (-problem.rows[expert], expert)):
        free = (rank for rank in range(num_ranks) if len(ranks[rank]) < problem.experts_per_rank)
        rank = min(free, key=lambda rank: (rows[rank], rank))
        ranks[rank].append(expert)
        rows[rank] += problem.rows[expert]
    return ranks


def improved(problem: LayerProblem, start: ExpertRanks, left: TimeLeft) -> ExpertRanks:
    """Return `start` after every swap that improves it, until none does or no time is left."""
    state = _Swaps(problem, start)
    for _ in range(MAX_ROUNDS):
        if not state.round(left):
            break
    return as_placement(state.ranks)


class _Swaps:
    """A placement under change: rows by rank, and by host its tokens and those with two or more experts there."""

    def __init__(self, problem: LayerProblem, start: ExpertRanks) -> None:
        self.problem, self.ranks = problem, [list(experts) for experts in start]
        self.rows = problem.rank_rows(start)
        self.bits = _token_bits(problem) if problem.copy_s else [0] * problem.num_experts
        self.once, self.twice = [0] * problem.num_hosts, [0] * problem.num_hosts
        for host in range(problem.num_hosts):
            self._recount(host)
        self.copies = [once.bit_count() for once in self.once]
        self.price = self._price(self.rows, self.copies)

    def round(self, left: TimeLeft) -> bool:
        """Try all pairs of experts on different ranks, and return True if any swap was made."""
        is_better = False
        for one, other in combinations(range(self.problem.num_ranks), 2):
            if left.is_over:
                return False
            for i in range(self.problem.experts_per_rank):
                for j in range(self.problem.experts_per_rank):
                    is_better |= self._swap(one, i, other, j)
        return is_better

    def _swap(self, one: int, i: int, other: int, j: int) -> bool:
        """Swap two experts, given by rank and index, if that is better."""
        leaves, comes = self.ranks[one][i], self.ranks[other][j]
        more = self.problem.rows[comes] - self.problem.rows[leaves]
        rows = self.rows.copy()
        rows[one] += more
        rows[other] -= more
        here, there = self.problem.host_of(one), self.problem.host_of(other)
        copies = self.copies
        if here != there and self.problem.copy_s:
            copies = copies.copy()
            copies[here] = self._copies(here, leaves, comes)
            copies[there] = self._copies(there, comes, leaves)
        price = self._price(rows, copies)
        if not _is_less(price, self.price):
            return False
        self.ranks[one][i], self.ranks[other][j] = comes, leaves
        self.rows, self.copies, self.price = rows, copies, price
        if here != there:
            self._recount(here)
            self._recount(there)
        return True

    def _copies(self, host: int, leaves: int, comes: int) -> int:
        """Return the number of tokens of `host` if expert `comes` replaces expert `leaves`."""
        alone = self.bits[leaves] & ~self.twice[host]
        return ((self.once[host] & ~alone) | self.bits[comes]).bit_count()

    def _recount(self, host: int) -> None:
        once = twice = 0
        for rank, experts in enumerate(self.ranks):
            if self.problem.host_of(rank) == host:
                for expert in experts:
                    twice |= once & self.bits[expert]
                    once |= self.bits[expert]
        self.once[host], self.twice[host] = once, twice

    def _price(self, rows: Sequence[int], copies: Sequence[int]) -> tuple[float, float]:
        """Return the seconds and, to break ties, the mean of copies plus the mean square of rows."""
        problem = self.problem
        seconds = problem.copy_s * max(copies) + problem.row_s * max(rows)
        spread = sum(row * row for row in rows) / max(1, sum(rows))
        return seconds, problem.copy_s * sum(copies) / problem.num_hosts + problem.row_s * spread


def _is_less(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Return True if the seconds are less, or practically equal and the second number less."""
    slack = SLACK * other[0]
    return one[0] < other[0] - slack or (one[0] <= other[0] + slack and one[1] < other[1] * (1 - SLACK))


def _token_bits(problem: LayerProblem) -> list[int]:
    """Return, by expert, one bit for each token that chose it."""
    bits, at = [0] * problem.num_experts, 0
    for chosen, count in problem.tokens.items():
        mask = ((1 << count) - 1) << at
        at += count
        for expert in chosen:
            bits[expert] |= mask
    return bits
