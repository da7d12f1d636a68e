"""Degrees of groups inside stages that job.yaml leaves free: one job for each, with the degree fixed."""

from __future__ import annotations

from typing import get_args

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import FreeDegree
from planner.problem.context_groups import context_degrees
from planner.problem.expert_groups import expert_degrees
from planner.problem.fleet import slots_of


def with_free_degrees(inventory: Inventory, job: Job) -> list[Job]:
    """Return the job with each context and expert parallel degree to try."""
    slots, found = [len(slots_of(host, job)) for host in inventory.hosts], list[Job]()
    contexts = context_degrees(job)
    for cp in contexts:
        parted = job if len(contexts) == 1 else job.with_parallel(cp=cp)
        experts = expert_degrees(parted, slots)
        found += (parted if experts == (job.parallel.ep or 1,) else parted.with_parallel(ep=ep) for ep in experts)
    return found


def chosen_degrees(job: Job, planned: Job) -> tuple[FreeDegree, ...]:
    """Return the degrees that `planned`, one of the tried jobs, fixes and `job` does not."""
    keys = get_args(FreeDegree)
    return tuple(key for key in keys if getattr(job.parallel, key) != getattr(planned.parallel, key))
