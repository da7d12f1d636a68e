"""One layer's experts placed: balanced, improved by swaps and, if small enough, by the integer program."""

from __future__ import annotations

from typing import NamedTuple

from planner.experts.expert_program import solve_experts
from planner.experts.layer_problem import ExpertRanks, LayerProblem
from planner.experts.swaps import balanced, gathered, improved
from planner.time_left import TimeLeft

# Beyond these, the solver proves nothing in minutes. With copies, it took 0.4 s for 8 experts, 11 s for 16 if tokens
# choose two, and more than 30 s for 16 if they choose four.
MAX_EXPERTS = 16
MAX_SENT = 4_000  # coefficients of tokens on hosts, if copies count
CLOSE = 3e-3  # a gap that does not justify a program


class PlacedLayer(NamedTuple):
    """The best placement found, its seconds on the same tokens, and a lower bound for all placements."""

    placement: ExpertRanks
    seconds: float
    bound_s: float


def place_layer(problem: LayerProblem, left: TimeLeft) -> PlacedLayer:
    """Return the best placement of a layer's experts that is found in the remaining time."""
    starts = [*([gathered(problem)] if problem.copy_s else []), balanced(problem), problem.usual]
    best = min((improved(problem, start, left) for start in starts), key=problem.seconds)
    seconds, bound_s = problem.seconds(best), problem.bound_s()
    if bound_s < seconds * (1 - CLOSE) and _is_small(problem) and not left.is_over:
        solved, solved_bound_s = solve_experts(problem, seconds, left.seconds)
        bound_s = max(bound_s, min(solved_bound_s, seconds))
        if solved is not None and problem.seconds(solved) < seconds:
            best, seconds = solved, problem.seconds(solved)
    problem.check(best)
    return PlacedLayer(best, seconds, min(bound_s, seconds))


def _is_small(problem: LayerProblem) -> bool:
    """Return True if the solver can prove more than the bound does."""
    sent = problem.num_hosts * sum(map(len, problem.tokens)) if problem.copy_s else 0
    return problem.num_experts <= MAX_EXPERTS and sent <= MAX_SENT
