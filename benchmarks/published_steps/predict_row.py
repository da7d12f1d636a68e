"""A published step predicted by `holmes plan`'s own path: its files are planned with all fixed that the row fixes."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.published_steps.measurements import Measurement, measurements
from benchmarks.published_steps.row_files import cut, inventory_of, job_of
from holmes_core.errors import HolmesError
from holmes_core.records.plan import Plan, SourceFile
from holmes_runtime.config.schedule import ScheduleName
from planner.make_plan import make_plan
from planner.problem.candidates import Candidate
from planner.problem.problem import read_problem
from planner.schedule.placement_simulator import PlacementSimulator
from planner.schedule.run_mode import RunMode
from planner.search.placement import Placement, even_shares


def plan_row(row: Measurement) -> tuple[Plan, bool]:
    """The plan, and whether memory holds it; where it does not the plan is made as if memory were not known.

    Raises HolmesError where the planner has no such plan at all.
    """
    try:
        return _plan(row, knows_memory=True), True
    except HolmesError as error:
        if "tensor group" in error.what:
            raise
        return _plan(row, knows_memory=False), False


def _plan(row: Measurement, knows_memory: bool) -> Plan:
    inventory, job = inventory_of(row, knows_memory), job_of(row)
    sources = (
        SourceFile(path="inventory.json", digest=inventory.source_digest()),
        SourceFile(path="job.yaml", digest=job.source_digest()),
    )
    return make_plan(inventory, job, *sources)


def is_planned(row: Measurement) -> bool:
    """Whether the planner has such plans: its tensor groups stay inside a host."""
    return row.tp <= len(inventory_of(row).hosts[0].gpus)


def calibrates(row: Measurement) -> bool:
    """Return True if constants were fitted to the row: every second one of a table, never one of V7 and V17 to V19."""
    rows = [other for other in measurements() if other.table == row.table]
    return row.table not in ("V7", "V17", "V18", "V19") and rows.index(row) % 2 == 1


def chosen_size(row: Measurement) -> Measurement:
    """The row with the micro-batch size that the planner takes where none is published."""
    return row if row.micro_batch_size is not None else replace(row, micro_batch_size=plan_row(row)[0].micro_batch_size)


def quick_s(row: Measurement) -> float:
    """Seconds of the step as the planner's simulation by classes finds them, of a micro-batch size that is known."""
    assert row.micro_batch_size is not None
    problem = read_problem(inventory_of(row), job_of(row))
    replicas = row.dp * row.cp
    candidate = Candidate(row.tp, row.pp, replicas, row.micro_batch_size, row.recompute)
    stages = cut(row)
    layers = tuple(sum(stages[rank :: row.pp]) for rank in range(row.pp))
    shares = even_shares(row.cp * row.global_batch_size // row.micro_batch_size, replicas)
    placement = Placement(candidate, layers, ((0,) * replicas,) * row.pp, shares)
    simulator = PlacementSimulator(problem.job, problem.coefficients(candidate), placement)
    schedule: ScheduleName = "interleaved" if row.chunks > 1 else "1f1b"
    return simulator.timed(RunMode(schedule, row.chunks, (), tuple(stages), 0.0)).step_s
