"""A round of islands: the inner steps of each, the part of the outer syncs that they hide, and the cost of it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_core.records.islands import Round
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_runtime.config.run_settings import ChosenIslands
from planner.islands.outer_sync_cost import OuterSyncCost
from planner.tolerances import ROUNDING


@dataclass(frozen=True)
class IslandRound:
    """Islands, each with its plan, its inner steps a round, and what a round costs under the settings."""

    settings: ChosenIslands
    plans: tuple[Plan, ...]
    inner_steps: tuple[int, ...]
    cost: Round


def make_round(
    islands: ChosenIslands, job: Job, plans: Sequence[Plan], steps_s: Sequence[float], exchange: OuterSyncCost
) -> IslandRound | str:
    """Return the round of the islands of `plans`, whose steps take `steps_s`, or the reason in words why there is none.

    The fastest takes as many inner steps as `islands` says, the others as many as fit in its time. An outer sync begins
    when all islands have arrived. They wait for the time it takes beyond the inner steps until it is applied, and for
    all of the last one.
    """
    fastest_s, fragment_s = min(steps_s), exchange.fragment_s(islands.fragments)
    inner_steps = tuple(int(islands.inner_steps * fastest_s / step_s * (1 + ROUNDING)) for step_s in steps_s)
    for plan, steps in zip(plans, inner_steps, strict=True):
        if why := _too_slow(islands, steps):
            return f"cluster {plan.ranks[0].cluster} is too slow: {why}"
    hidden_s = min(fragment_s, islands.delay_steps * fastest_s)
    exposed_s = islands.fragments * (fragment_s - hidden_s)
    round_s = islands.inner_steps * fastest_s + exposed_s
    samples = sum(steps * plan.job.global_batch_size for steps, plan in zip(inner_steps, plans, strict=True))
    cost = Round(
        round_s=round_s,
        exposed_s=exposed_s,
        exchange_s=islands.fragments * fragment_s,
        end_s=hidden_s,
        sent_bytes=exchange.sent_bytes,
        tokens_per_s=samples * job.model.seq_length / round_s,
    )
    return IslandRound(islands, tuple(plans), inner_steps, cost)


def _too_slow(islands: ChosenIslands, steps: int) -> str:
    """Return why so few inner steps a round are too few; empty where they are enough."""
    if steps < islands.fragments:
        return f"it takes {steps} steps a round, islands.fragments is {islands.fragments}"
    if islands.delay_steps > steps // islands.fragments:
        apart = f"{steps // islands.fragments} steps between two fragments"
        return f"it takes {apart}, islands.delay_steps is {islands.delay_steps}"
    return ""
