"""The integer program of whole replicas over several classes: how many micro-batches each class's replicas run.

Sets
    S   sets of classes over which the replicas may be, s, with their counts and cut as in whole_replicas.py
Parameters (seconds divided by `unit_s`)
    B   micro-batches of a step, of all replicas    count[s,c]  replicas in class c
    fill[s,c]  seconds of a replica's first micro-batch, and pace[s,c] of each further one
    sync[s]  seconds of the longest exposed exchange of gradients
    least[s,c], most[s,c]  micro-batches of a replica of class c; equal for even shares
Variables
    y[s]    binary: the replicas are over s          m[s,c]  integer: micro-batches of the busiest replica of class c
    T       seconds of the slowest class
Objective
    minimise T + sum_s sync[s] y[s]
Constraints
    one set     sum_s y[s] = 1
    shares      least[s,c] y[s] <= m[s,c] <= most[s,c] y[s]
    batch       sum_c count[s,c] m[s,c] >= B y[s]
    slowest     T >= (fill[s,c] - pace[s,c]) y[s] + pace[s,c] m[s,c]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pulp

from planner.problem.coefficients import Coefficients
from planner.search.closed_form import lane_s, step_s
from planner.search.whole_replicas import ReplicaSet, replica_sets, share_microbatches, shares_evenly, stage_exchanges


@dataclass
class ReplicaProgram:
    """The model while it is built. Seconds are divided by `unit_s`; y, m and T are by set and class."""

    coeffs: Coefficients
    unit_s: float
    model: pulp.LpProblem = field(default_factory=lambda: pulp.LpProblem("replicas", pulp.LpMinimize))
    T: Any = field(default_factory=lambda: pulp.LpVariable("T", 0))
    y: list[Any] = field(default_factory=list)
    m: list[dict[int, Any]] = field(default_factory=list)
    sets: list[ReplicaSet] = field(default_factory=list)

    def least_s(self) -> float:
        """Return the closed-form seconds of the solution."""
        s = next(s for s, chosen in enumerate(self.y) if chosen.value() > 1 / 2)
        lanes = self.sets[s].lanes.items()
        run = [lane._replace(microbatches=round(self.m[s][c].value())) for c, lane in lanes]
        return step_s(self.coeffs, run, stage_exchanges(self.coeffs, self.sets[s]))


def build_replicas(
    coeffs: Coefficients, fixed_layers: tuple[int, ...] | None, unit_s: float = 1.0
) -> ReplicaProgram | None:
    """Return the program, ready to solve; None if no set has room."""
    program = ReplicaProgram(coeffs, unit_s)
    for replicas in replica_sets(coeffs, fixed_layers):
        shares = share_microbatches(coeffs, replicas)
        if shares is not None:
            _add_set(program, replicas, shares)
    program.model.addConstraint(pulp.lpSum(program.y) == 1, "one_set")
    exposed = [_exposed_s(coeffs, each) / unit_s * chosen for each, chosen in zip(program.sets, program.y, strict=True)]
    program.model.setObjective(program.T + pulp.lpSum(exposed))
    return program if program.sets else None


def _exposed_s(coeffs: Coefficients, replicas: ReplicaSet) -> float:
    """Return sync[s], in unscaled seconds."""
    lanes = list(replicas.lanes.values())
    return step_s(coeffs, lanes, stage_exchanges(coeffs, replicas)) - max(lane_s(coeffs, lane) for lane in lanes)


def _add_set(program: ReplicaProgram, replicas: ReplicaSet, shares: Mapping[int, tuple[int, ...]]) -> None:
    """Add y[s], m[s,c] and their rows. Shares are fixed if they are even or weights are held together."""
    coeffs, model, s = program.coeffs, program.model, len(program.sets)
    held_together = coeffs.candidate.weight_shards > 1 or coeffs.candidate.copies > 1
    total, is_fixed = coeffs.total_microbatches, shares_evenly(coeffs, replicas) or held_together
    chosen = pulp.LpVariable(f"y_{s}", cat=pulp.LpBinary)
    held: dict[int, Any] = {}
    for c, lane in replicas.lanes.items():
        first_s = lane_s(coeffs, lane)
        pace_s = lane_s(coeffs, lane._replace(microbatches=2)) - first_s
        least, most = (max(shares[c]),) * 2 if is_fixed else (1, total)
        held[c] = pulp.LpVariable(f"m_{s}_{c}", 0, most, cat=pulp.LpInteger)
        model.addConstraint(held[c] >= least * chosen, f"shares_least_{s}_{c}")
        model.addConstraint(held[c] <= most * chosen, f"shares_most_{s}_{c}")
        seconds = (first_s - pace_s) / program.unit_s * chosen + pace_s / program.unit_s * held[c]
        model.addConstraint(seconds <= program.T, f"slowest_{s}_{c}")
    counted = pulp.lpSum(replicas.counts[c] * share for c, share in held.items())
    model.addConstraint(counted >= total * chosen, f"batch_{s}")
    program.y.append(chosen)
    program.m.append(held)
    program.sets.append(replicas)
