"""The integer program of one layer: experts on ranks, with the least traffic between hosts and balanced compute.

Sets
    E   experts, e         R   ranks, r; R(h) on host h        H   hosts
    S   sets of experts that tokens chose, s
Parameters (seconds divided by `unit_s`, so that the objective is near 1)
    rows[e]  tokens that chose e       n[s]  tokens that chose exactly s       q  experts of a rank, |E| / |R|
    copy, row  seconds per token that a host receives, and per row that a rank computes
    least  lower bound on the copies of all placements
Variables
    x[e,r]  binary: e is on r          z[s,h]  tokens of s go to h; 0 to 1, and whole if x is
    C  tokens that the fullest host receives            L  rows of the fullest rank
Objective
    minimise copy C + row L
Constraints
    placed    sum_r x[e,r] = 1         full    sum_e x[e,r] = q
    sent      z[s,h] >= sum_(r in R(h)) x[e,r] for each e in s
    copies    C >= sum_s n[s] z[s,h] for each h; sum_(s,h) n[s] z[s,h] >= least
    rows      L >= sum_e rows[e] x[e,r] for each r
    first     x[0,0] = 1: hosts are alike, and so are the ranks of one
    known     the objective is at most that of a known placement
If copies do not count, z and C are left out. Source of the objective: the expected transmissions of Sivtsov et al.,
Cluster Topology-Driven Placement of Experts, 2025 (arXiv 2508.09229), adapted to tokens that several experts of a host
share, and to the slowest host and rank.
"""

from __future__ import annotations

from typing import Any

import pulp

from planner.experts.layer_problem import ExpertRanks, LayerProblem, as_placement
from planner.search.solve import CUTOFF, engine, quiet, solver_name


class ExpertProgram:
    """The model, with the letters of the docstring above."""

    def __init__(self, problem: LayerProblem, known_s: float) -> None:
        self.problem, self.unit_s = problem, known_s
        self.model = pulp.LpProblem("experts", pulp.LpMinimize)
        experts, ranks = range(problem.num_experts), range(problem.num_ranks)
        self.x = {(e, r): pulp.LpVariable(f"x_{e}_{r}", cat="Binary") for e in experts for r in ranks}
        self.C, self.L = pulp.LpVariable("C", 0), pulp.LpVariable("L", 0)
        self.model += (problem.copy_s * self.C + problem.row_s * self.L) / known_s
        for e in experts:
            self.require(pulp.lpSum(self.x[e, r] for r in ranks) == 1, f"placed_{e}")
        for r in ranks:
            self.require(pulp.lpSum(self.x[e, r] for e in experts) == problem.experts_per_rank, f"full_{r}")
            self.require(pulp.lpSum(problem.rows[e] * self.x[e, r] for e in experts) <= self.L, f"rows_{r}")
        self.require(self.x[0, 0] == 1, "first")
        self.require(self.model.objective <= 1 + CUTOFF, "known")
        if problem.copy_s:
            self._add_copies()

    def require(self, constraint: Any, name: str) -> None:
        """Add one named constraint."""
        self.model.addConstraint(constraint, name)

    def _add_copies(self) -> None:
        problem, copies = self.problem, list[Any]()
        hosts, ranks = range(problem.num_hosts), range(problem.num_ranks)
        for h in hosts:
            held = {
                e: pulp.lpSum(self.x[e, r] for r in ranks if problem.host_of(r) == h)
                for e in range(problem.num_experts)
            }
            sent = list[Any]()
            for s, (chosen, count) in enumerate(problem.tokens.items()):
                z = pulp.LpVariable(f"z_{s}_{h}", 0, 1)
                for e in chosen:
                    self.require(z >= held[e], f"sent_{s}_{h}_{e}")
                sent.append(count * z)
            self.require(pulp.lpSum(sent) <= self.C, f"copies_{h}")
            copies += sent
        self.require(pulp.lpSum(copies) >= problem.fewest_copies, "copies")

    def placement(self) -> ExpertRanks:
        """Return the solution's placement."""
        ranks = range(self.problem.num_ranks)
        return as_placement(
            [[e for e in range(self.problem.num_experts) if self.x[e, r].value() > 1 / 2] for r in ranks]
        )


def solve_experts(problem: LayerProblem, unit_s: float, time_limit_s: float) -> tuple[ExpertRanks | None, float]:
    """Return the best placement found, if any, and a lower bound on the seconds of all placements."""
    with quiet():
        program = ExpertProgram(problem, unit_s)
        model = program.model
        model.solve(engine(solver_name(), time_limit_s))
        is_optimal = model.sol_status == pulp.LpSolutionOptimal
        found = is_optimal or model.sol_status == pulp.LpSolutionIntegerFeasible
        placement = program.placement() if found else None
        highs = getattr(model, "solverModel", None)
        if highs is not None:
            return placement, float(highs.getInfo().mip_dual_bound) * unit_s
        return placement, problem.seconds(placement) if placement and is_optimal else 0.0
