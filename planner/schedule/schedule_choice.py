"""The schedule of a placement: each that memory allows is simulated at the level of classes, and the fastest taken.

The integer program assumes that edges are hidden, but 1F1B does not hide them. This choice pays for it with
micro-batches in flight (`eager`) where memory allows. Of schedules that take equally long, it takes the first of
`SIMPLEST`.
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
    """The fastest mode to run `placement`; None where memory, or its micro-batches, allow none that job.yaml does."""
    simulator = PlacementSimulator(job, coeffs, placement)
    run: list[RunMode] = []
    for mode in sorted(simulator.modes(), key=lambda mode: mode.step_s):
        within_s = min((each.step_s for each in run), default=inf) * (1 + RELATIVE_TOLERANCE)
        if mode.step_s <= within_s:
            run.append(simulator.timed(mode, within_s))
    return simplest(run) if run else None
