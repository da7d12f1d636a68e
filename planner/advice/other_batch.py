"""A batch near the requested one with less time per sample, which all replicas that fit share evenly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from planner.make_plan import planned_step_s
from planner.problem.problem import read_problem

MAX_HOSTS = 16  # with more, each of the four searches may take seconds
NEAR = 0.25  # of the batch: a larger change would train another model
WORTH = 1.02  # any larger batch saves a little per sample


class BatchGain(NamedTuple):
    """Another batch, and the seconds of its step."""

    global_batch_size: int
    step_s: float


def faster_batch(inventory: Inventory, plan: Plan, limit_s: float) -> BatchGain | None:
    """Return the batch near the plan's with the least seconds per sample at the plan's degrees, if it gains much.

    Batches are tried for at most `limit_s`. None is tried in the usual order, or on more than MAX_HOSTS hosts.
    """
    deadline_s, batch = time.monotonic() + limit_s, plan.job.global_batch_size
    best, best_s = None, plan.prediction.step_s / batch / WORTH
    tried = plan.order == "holmes" and len(inventory.hosts) <= MAX_HOSTS
    for dp, size in _even_batches(inventory, plan) if tried else ():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            break
        try:
            step_s = planned_step_s(inventory, _at_degrees(plan, dp, size), left_s, best_s * size)
        except HolmesError:
            continue  # no room for so many replicas, or no time
        if step_s / size < best_s:
            best, best_s = BatchGain(size, step_s), step_s / size
    return best


def _even_batches(inventory: Inventory, plan: Plan) -> Iterator[tuple[int, int]]:
    """Yield (replicas, batch) for the plan's replicas and for all that fit, with a micro-batch each more or less,
    nearest first."""
    fleet, batch, size = read_problem(inventory, plan.job).fleet, plan.job.global_batch_size, plan.micro_batch_size
    most = plan.job.parallel.dp or fleet.num_group_slots(plan.tp) // (plan.pp * plan.job.cp)
    found = {
        (dp, dp * shares * size)
        for dp in (plan.engine_dp, most)
        for shares in (batch // (dp * size), -(-batch // (dp * size)))
    }
    near = [(dp, other) for dp, other in found if other != batch and abs(other - batch) <= NEAR * batch]
    yield from sorted(near, key=lambda each: (abs(each[1] - batch), each))


def _at_degrees(plan: Plan, dp: int, batch: int) -> Job:
    """Return the plan's job with that batch and `dp`, and its other degrees fixed to the plan's."""
    degrees = {"tp": plan.tp, "pp": plan.pp, "dp": dp, "micro_batch_size": plan.micro_batch_size}
    return plan.job.with_parallel(**degrees).model_copy(update={"global_batch_size": batch})
