"""The schedule of a placement: the fastest of all that memory allows, simulated at the level of classes.

The integer program assumes that edges are hidden, but 1F1B does not hide them. Micro-batches in flight (`eager`) do, if
memory allows them. Among schedules that take equally long, the first of `SIMPLEST` is chosen.
"""

from __future__ import annotations

from math import inf

from holmes_core.records.job import Job
from planner.problem.coefficients import Coefficients
from planner.schedule.placement_simulator import PlacementSimulator
from planner.schedule.run_mode import RunMode, simplest
from planner.search.placement import Placement
from planner.tolerances import RELATIVE_TOLERANCE


def choose_schedule(job: Job, coeffs: Coefficients, placement: Placement) -> RunMode | None:
    """Return the fastest mode for `placement`; None if memory or micro-batches rule out all that job.yaml allows."""
    simulator = PlacementSimulator(job, coeffs, placement)
    run: list[RunMode] = []
    for mode in sorted(simulator.modes(), key=lambda mode: mode.step_s):
        within_s = min((each.step_s for each in run), default=inf) * (1 + RELATIVE_TOLERANCE)
        if mode.step_s <= within_s:
            run.append(simulator.timed(mode, within_s))
    return simplest(run) if run else None
