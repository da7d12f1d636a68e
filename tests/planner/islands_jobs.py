"""Plans of jobs that allow islands, for the tests."""

from __future__ import annotations

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import IslandsPlan, Plan, SourceFile
from planner.islands.plan_mode import plan_mode
from planner.make_plan import make_plan

SOURCES = SourceFile(path="inventory.json", digest="sha256:0"), SourceFile(path="job.yaml", digest="sha256:1")


def planned_mode(inventory: Inventory, job: Job, time_limit_s: float = 600.0) -> Plan | IslandsPlan:
    """The plan of the fastest mode."""

    def make(together: Job, within_s: float) -> Plan:
        return make_plan(inventory, together, *SOURCES, time_limit_s=within_s)

    return plan_mode(inventory, job, SOURCES, make, time_limit_s, lambda _: None)
