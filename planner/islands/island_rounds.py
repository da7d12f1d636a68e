"""A round of islands: the inner steps of each, the part of the outer syncs that they hide, and the cost."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from holmes_core.records.islands import LossPenalty, Round
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_runtime.config.run_settings import ChosenIslands
from planner.cost.islands_loss import loss_penalty
from planner.islands.outer_sync_cost import OuterSyncCost
from planner.tolerances import ROUNDING


@dataclass(frozen=True)
class IslandRound:
    """Islands with their plans and inner steps, and the cost of a round under the settings.

    `loss` is None if it was not measured; a single exchange at the end of the run never was. `misfit` is the reason why
    an island's hosts lack memory for the settings; empty if they have it.
    """

    settings: ChosenIslands
    plans: tuple[Plan, ...]
    inner_steps: tuple[int, ...]
    cost: Round
    loss: LossPenalty | None
    misfit: str = ""


def make_round(
    islands: ChosenIslands, job: Job, plans: Sequence[Plan], steps_s: Sequence[float], exchange: OuterSyncCost
) -> IslandRound | str:
    """Return the round of the islands of `plans`, whose steps take `steps_s`, or the reason why there is none.

    The fastest island takes the inner steps of `islands`, the others as many as fit in its time. If the job takes all
    steps in one round, the islands take enough to read the samples of the job's steps. An outer sync begins when all
    islands have arrived. Inner steps hide it until it is applied; islands wait for the rest, and for all of the last
    one.
    """
    fastest_s, fragment_s = min(steps_s), exchange.fragment_s(islands.fragments)
    speeds, batches = [fastest_s / step_s for step_s in steps_s], [plan.job.global_batch_size for plan in plans]
    takes_all = job.islands is not None and job.islands.inner_steps == "all"
    fastest_steps = _all_steps(job, speeds, batches) if takes_all else islands.inner_steps
    inner_steps = _steps_of_each(fastest_steps, speeds)
    for plan, steps in zip(plans, inner_steps, strict=True):
        if why := _too_slow(islands, steps):
            return f"cluster {plan.ranks[0].cluster} is too slow: {why}"
    hidden_s = min(fragment_s, islands.delay_steps * fastest_s)
    exposed_s = islands.fragments * (fragment_s - hidden_s)
    round_s = fastest_steps * fastest_s + exposed_s
    samples = sum(map(operator.mul, inner_steps, batches))
    cost = Round(
        round_s=round_s,
        exposed_s=exposed_s,
        exchange_s=islands.fragments * fragment_s,
        end_s=hidden_s,
        sent_bytes=exchange.sent_bytes,
        tokens_per_s=samples * job.model.seq_length / round_s,
    )
    meets_once = samples >= job.steps * job.global_batch_size
    return IslandRound(islands, tuple(plans), inner_steps, cost, None if meets_once else loss_penalty(islands))


def _steps_of_each(fastest_steps: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Return the inner steps of islands with these `speeds`, relative to the fastest one."""
    return tuple(int(fastest_steps * speed * (1 + ROUNDING)) for speed in speeds)


def _all_steps(job: Job, speeds: Sequence[float], batches: Sequence[int]) -> int:
    """Return the fewest steps of the fastest island in one round that reads as many samples as the job's steps."""
    wanted = job.steps * job.global_batch_size
    steps = int(wanted / sum(map(operator.mul, speeds, batches)))
    while sum(map(operator.mul, _steps_of_each(steps, speeds), batches)) < wanted:
        steps += 1
    return steps


def _too_slow(islands: ChosenIslands, steps: int) -> str:
    """Return the reason why an island takes too few inner steps per round; empty if they are enough."""
    if steps < islands.fragments:
        return f"it takes {steps} steps a round, islands.fragments is {islands.fragments}"
    if islands.delay_steps > steps // islands.fragments:
        apart = f"{steps // islands.fragments} steps between two fragments"
        return f"it takes {apart}, islands.delay_steps is {islands.delay_steps}"
    return ""
